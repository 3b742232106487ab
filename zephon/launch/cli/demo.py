"""``demo``, the main job: train on real text, be stopped, resume on fewer nodes twice, and prove that the data never changed.

    leg 1   4 nodes, stopped on the way       leg 3   1 node, to the end
    leg 2   2 nodes, stopped on the way       beside  one uninterrupted run on 1 node

It types the commands that you would type. The exit status is the answer: 0 when every global batch was the same.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console

from zephon.errors import ConfigError, ZephonError
from zephon.launch.cli.arguments import Arguments
from zephon.report.legs import rows, sentence, table
from zephon.report.picture import loss_picture
from zephon.report.run import read_run
from zephon.report.stage import write_page
from zephon.run import ledger
from zephon.run.directory import REPORT, RunDir
from zephon.run.ledger import read_ledger

LEG_TIMEOUT_S = 600
_STEPS, _SIZES = 40, (4, 2, 1)


def demo(arguments: Arguments, console: Console) -> int:
    """Three legs and the uninterrupted run; 1 where a global batch differed or a step is missing."""
    started = time.monotonic()
    runs = Path(arguments.own.get("runs") or Path("runs") / time.strftime("demo-%Y%m%d-%H%M%S"))
    given = [text for text in arguments.overrides if text.startswith("trainer.steps=")]
    steps_wanted = int(given[-1].partition("=")[2]) if given else _STEPS
    common = [f"runs={runs}", *(text for text in arguments.overrides if text not in given)]
    chosen = [] if any(text.startswith("conf=") for text in common) else ["conf=exp1"]
    settings = [*chosen, f"trainer.steps={steps_wanted}", *common]
    ledgers = {name: runs / name / ledger.FILE for name in ("rescaled", "reference")}

    first, *others = _SIZES
    legs = [["run", *settings, "name=rescaled", f"nodes={first}"]]
    legs += [["resume", "rescaled", f"nodes={nodes}", f"runs={runs}"] for nodes in others]
    for number, leg in enumerate(legs, 1):
        stop_at = None if number == len(legs) else steps_wanted * number // len(legs)
        console.rule(f"leg {number} of {len(legs)}")
        _leg(console, leg, ledgers["rescaled"], stop_at, f"runs={runs}")
    console.rule("the uninterrupted run")
    _leg(console, ["run", *settings, "name=reference", "nodes=1"], ledgers["reference"], None, f"runs={runs}")

    steps = rows(str(ledgers["rescaled"]), str(ledgers["reference"]))
    same, words = sentence(steps)
    picture = runs / "losses.svg"
    picture.write_text(loss_picture(steps), "utf-8")
    console.print(table(steps))
    console.print(f"{words}\nPicture: {picture}    Time: {time.monotonic() - started:.0f} s", soft_wrap=True, highlight=False)
    complete = len(steps) == steps_wanted
    if not complete:
        console.print(f"But only {len(steps)} of {steps_wanted} steps were trained.")
    console.print(f"Report: {_page(runs / 'rescaled')}", soft_wrap=True, highlight=False, markup=False)
    return 0 if same and complete else 1


def _page(folder: Path) -> str:
    """Writes the page of the rescaled run; where it is, or why it is not there."""
    out = folder / REPORT
    try:
        write_page([read_run(RunDir(str(folder)))], out)
    except ConfigError as error:
        return f"not written, {error.what}; {error.remedy}, then: zephon report {folder}"
    return str(out)


def _leg(console: Console, arguments: list[str], ledger: Path, stop_at: int | None, runs: str) -> None:
    """Runs one leg in the foreground; stops it from outside once it has reached a step, as an operator would."""
    console.print(f"$ zephon {' '.join(arguments)}", style="bold", highlight=False, soft_wrap=True)
    process = subprocess.Popen([sys.executable, "-m", "zephon.launch", *arguments])
    try:
        deadline = time.monotonic() + LEG_TIMEOUT_S
        while stop_at is not None and process.poll() is None and time.monotonic() < deadline:
            if ledger.exists() and max((entry.step + 1 for entry in read_ledger(str(ledger))), default=0) >= stop_at:
                console.print("$ zephon stop rescaled   (from another terminal)", style="bold", highlight=False)
                stop = [sys.executable, "-m", "zephon.launch", "stop", "rescaled", runs]
                subprocess.run(stop, check=True, timeout=LEG_TIMEOUT_S, stdout=subprocess.DEVNULL)
                break
            time.sleep(0.2)
        status = process.wait(timeout=max(1.0, deadline - time.monotonic()))
    except BaseException:
        process.terminate()
        process.wait()
        raise
    if stop_at is None and status != 0:
        raise ZephonError(
            f"the leg ended with status {status}", follows="the legs could not be compared", remedy=f"see zephon logs {runs}"
        )
