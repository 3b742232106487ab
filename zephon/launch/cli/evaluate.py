"""``evaluate RUN --tasks FILE``: a checkpoint's accuracy on multiple choice, in a process of its own, since it needs torch."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from zephon.errors import ConfigError
from zephon.launch.cli.arguments import Arguments
from zephon.launch.cli.views import run_of

if TYPE_CHECKING:
    from rich.console import Console


def evaluate(arguments: Arguments, console: Console) -> int:
    """Prints the score of each task and writes it to the run's ``tasks.json``; 65 where a file or a checkpoint is missing."""
    if not arguments.tasks:
        raise ConfigError(
            "zephon evaluate without --tasks",
            follows="there would be nothing to evaluate on",
            remedy="give a file: --tasks FILE.jsonl; the loss on held-out text is the stage evaluate (docs/evaluation.md)",
        )
    command = [sys.executable, "-m", "zephon.train.tasks", "--run", run_of(arguments).url, "--tasks", arguments.tasks]
    if arguments.step is not None:
        command += ["--step", str(arguments.step)]
    if arguments.json:
        command.append("--json")
    return subprocess.run(command, check=False).returncode
