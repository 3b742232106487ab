"""The command line: ``python -m zephon.launch [verb] ...`` and the console script ``zephon``.

What a verb needs is imported when it is called: help, completion, ``list`` and ``status`` are there at once.

Exit status: 0 done, 1 the job failed, 2 a ledger or a health check disagrees, 65 configuration or contract, 143 stopped.
Ctrl-C in a foreground ``run`` drains: the step is finished and saved, and the line to resume with is printed; a second
Ctrl-C leaves at once and the drain goes on in the background. A closed terminal leaves the run running.
"""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from zephon.errors import ConfigError, ContractError, ZephonError
from zephon.exits import Exit
from zephon.launch.cli.arguments import Arguments, parse
from zephon.launch.cli.grammar import VERBS

if TYPE_CHECKING:
    from rich.console import Console

_FILE_WIDTH = 240
_STORES = ("botocore", "aiobotocore", "aiohttp", "gcsfs", "google", "adlfs", "azure")  # their errors are no OSErrors


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status."""
    argv = sys.argv[1:] if argv is None else argv
    warnings.formatwarning = lambda message, *_: f"warning: {message}\n"  # a user of a command has no use for a line of code
    try:
        return _run(argv)
    except ZephonError as error:
        show_error(error)
        return error.exit_status
    except BrokenPipeError:  # `zephon logs | head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _storage_failed(
            f"{error.strerror or error}" + (f": {error.filename}" if error.filename else ""),
            "check the path, its rights and the free space; `zephon doctor` checks all of them",
        )
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in _STORES:
            raise
        return _storage_failed(
            " ".join(str(error).split()), "check credentials, endpoint and network of the store that runs= or the data name"
        )
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return Exit.INTERRUPTED


def _run(argv: Sequence[str]) -> int:
    arguments = parse(argv) if argv else None
    if arguments is None or arguments.help or arguments.version or arguments.completion or arguments.complete is not None:
        print(_text(arguments))
        return 0
    from rich.console import Console

    module, _, function = VERBS[arguments.verb].call.partition(":")
    call: Callable[[Arguments, Console], int] = getattr(importlib.import_module(module), function)
    # No markup: names, paths and errors of the run's own are shown as they are, brackets included.
    return call(arguments, Console(soft_wrap=True, width=None if sys.stdout.isatty() else _FILE_WIDTH, markup=False))


def _text(arguments: Arguments | None) -> str:
    """What is only text: help, version, completion; usage where nothing was typed."""
    from zephon.launch.cli import completion, help

    if arguments is None:
        return help.usage()
    if arguments.help:
        return help.help_text(arguments.verb, arguments.config_dir)
    if arguments.completion is not None:
        return completion.script(arguments.completion)
    if arguments.complete is not None:
        return "\n".join(completion.candidates(arguments.complete))
    from zephon.run.environment import version_line

    return version_line()


def _storage_failed(what: str, remedy: str) -> int:
    show_error(ConfigError(what, remedy=remedy))
    return ConfigError.exit_status


def show_error(error: ZephonError) -> None:
    """Three parts on stderr; a contract's differences as a table."""
    from rich.console import Console

    console = Console(stderr=True, soft_wrap=True, markup=False)
    differences = getattr(error, "differences", None)
    if isinstance(error, ContractError) and differences:
        from zephon.launch.cli.plan import difference_table

        console.print(difference_table(differences))
    console.print("error:", style="bold red", end=" ")
    console.print(str(error), markup=False, highlight=False)
    for note in getattr(error, "__notes__", []):
        console.print(f"  {note}", markup=False, highlight=False)
