"""The main job: train on real text, be stopped, resume on fewer nodes twice, and prove that the data never changed.

    leg 1   4 nodes, stopped on the way       leg 3   1 node, to the end
    leg 2   2 nodes, stopped on the way       beside  one uninterrupted run on 1 node

It types the commands that you would type. The exit status is the answer: 0 when every global batch was the same.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console

from zephon.report.legs import rows, sentence, table
from zephon.report.picture import loss_picture
from zephon.run.ledger import read_ledger

LEG_TIMEOUT_S = 600


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs") / time.strftime("demo-%Y%m%d-%H%M%S"))
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--sizes", type=int, nargs="+", default=[4, 2, 1])
    parser.add_argument("overrides", nargs="*", help="key=value settings for all runs")
    chosen = parser.parse_args()
    console = Console()
    started = time.monotonic()
    runs, common = chosen.runs, [f"runs={chosen.runs}", *chosen.overrides]
    settings = ["conf=exp1", f"trainer.steps={chosen.steps}", *common]
    ledgers = {name: runs / name / "ledger.jsonl" for name in ("rescaled", "reference")}

    first, *others = chosen.sizes
    legs = [["run", *settings, "name=rescaled", f"nodes={first}"]]
    legs += [["resume", "rescaled", f"nodes={nodes}", *common] for nodes in others]
    for number, leg in enumerate(legs, 1):
        stop_at = None if number == len(legs) else chosen.steps * number // len(legs)
        console.rule(f"leg {number} of {len(legs)}")
        _leg(console, leg, ledgers["rescaled"], stop_at, common)
    console.rule("the uninterrupted run")
    _leg(console, ["run", *settings, "name=reference", "nodes=1"], ledgers["reference"], None, common)

    steps = rows(str(ledgers["rescaled"]), str(ledgers["reference"]))
    same, words = sentence(steps)
    picture = runs / "losses.svg"
    picture.write_text(loss_picture(steps), "utf-8")
    console.print(table(steps))
    console.print(f"{words}\nPicture: {picture}    Time: {time.monotonic() - started:.0f} s", soft_wrap=True, highlight=False)
    complete = len(steps) == chosen.steps
    if not complete:
        console.print(f"But only {len(steps)} of {chosen.steps} steps were trained.")
    return 0 if same and complete else 1


def _leg(console: Console, arguments: list[str], ledger: Path, stop_at: int | None, common: list[str]) -> None:
    """Runs one leg in the foreground; stops it from outside once it has reached a step, as an operator would."""
    console.print(f"[bold]$ zephon {' '.join(arguments)}[/bold]", highlight=False, soft_wrap=True)
    process = subprocess.Popen([sys.executable, "-m", "zephon.launch", *arguments])
    try:
        deadline = time.monotonic() + LEG_TIMEOUT_S
        while stop_at is not None and process.poll() is None and time.monotonic() < deadline:
            if ledger.exists() and max((entry.step + 1 for entry in read_ledger(str(ledger))), default=0) >= stop_at:
                console.print("[bold]$ zephon stop rescaled[/bold]   (from another terminal)", highlight=False)
                stop = [sys.executable, "-m", "zephon.launch", "stop", "rescaled", *common[:1]]
                subprocess.run(stop, check=True, timeout=LEG_TIMEOUT_S, stdout=subprocess.DEVNULL)
                break
            time.sleep(0.2)
        status = process.wait(timeout=max(1.0, deadline - time.monotonic()))
    except BaseException:
        process.terminate()
        process.wait()
        raise
    if stop_at is None and status != 0:
        raise SystemExit(f"the leg ended with status {status}; see `zephon logs` for the reason")


if __name__ == "__main__":
    sys.exit(main())
