"""A run on 2 and on 4 ranks to half its steps, resumed on 1, 2, 4 and 8.

    python -m experiments.resume [--tiny] [--out DIR]

Each resumed run is compared with the run that was never interrupted: how many steps have the same global batch, by their
SHA-256, how far its losses are from that run's, and how many rows it trains again. Where torchtitan is installed, its loader
is a third arm: it refuses another number of ranks, and with its state excluded it begins the data anew.

Rule: this loader has every hash equal and losses within 1e-4; on another number of ranks, own files have no hash equal.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path

from experiments import pages
from experiments.arms import CONTROL, OURS, Arm, Corpus, Setting, corpus, cut, digests, losses, main_of, rows, spec_of, train
from zephon.run.directory import RunDir

WITHIN = 1e-4
USUAL = Setting(sizes=(1, 2, 4, 8), steps=60)
FULL = Setting(
    sizes=(8, 16, 32, 64), steps=300, megabytes=2000, vocabulary=32000, length=2048, batch=128, lanes=64, dim=1024, layers=16,
    heads=16, lr=3e-4, warm_up=100, device="cuda", precision="bfloat16",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Leg:
    """One resumed run: steps after the resume, those with an equal hash, distance of losses, rows trained a second time."""

    arm: str
    begun: int
    ranks: int
    steps: int
    equal: int
    apart: float
    twice: int
    losses: dict[int, float]


def origins(setting: Setting) -> tuple[int, ...]:
    """Sizes of the runs that are interrupted: the second and third."""
    return setting.sizes[1:3]


def legs_of(arm: Arm, text: Corpus, setting: Setting, folder: Path, unbroken: dict[int, RunDir]) -> list[Leg]:
    half, found = setting.steps // 2, []
    for begun in origins(setting):
        name = f"{arm.name.split()[-1].lower().replace(chr(39), '')}-{begun}"
        spec = spec_of(text, setting, arm, folder / "whole", name=name)
        unbroken[begun] = train(spec, arm, begun)
        expected, wanted = digests(unbroken[begun]), losses(unbroken[begun])
        before = set(rows(unbroken[begun], range(half)))
        for ranks in setting.sizes:
            runs = cut(unbroken[begun], half, folder / f"at-{ranks}")
            run = train(dataclasses.replace(spec, runs=str(runs)), arm, ranks)
            got, values = digests(run), losses(run)
            after = range(half, setting.steps)
            equal = sum(got[step] == expected[step] for step in after)
            apart = max(abs(values[step] - wanted[step]) for step in after)
            twice = sum(row in before for row in rows(run, after))
            found.append(Leg(arm.name, begun, ranks, len(after), equal, apart, twice, values))
    return found


def experiment(folder: Path, setting: Setting, out: Path) -> bool:
    """Whether the rule holds."""
    text, found, unbroken = corpus(folder / "text", setting), list[Leg](), dict[int, RunDir]()
    for arm in (OURS, CONTROL):
        found += legs_of(arm, text, setting, folder, unbroken)
        if arm is OURS:
            reference = losses(unbroken[origins(setting)[0]])
    ours = [leg for leg in found if leg.arm == OURS.name]
    others = [leg for leg in found if leg.arm == CONTROL.name and leg.ranks != leg.begun]
    holds = all(leg.equal == leg.steps and leg.apart < WITHIN and not leg.twice for leg in ours)
    holds &= all(leg.equal == 0 for leg in others)
    heads = (
        "loader",
        "begun on",
        "resumed on",
        "steps with an equal hash",
        "largest distance of the loss",
        "rows trained twice",
    )
    cells = [(leg.arm, leg.begun, leg.ranks, f"{leg.equal} of {leg.steps}", f"{leg.apart:.1e}", leg.twice) for leg in found]
    if importlib.util.find_spec("torchtitan") is not None:
        from experiments.titan_files import beside

        cells += beside(text, setting, folder, origins(setting)[0])
    verdict = "holds" if holds else "DOES NOT HOLD"
    said = pages.table(heads, cells)
    said += f"\n\nRule (this loader: every hash equal, losses within {WITHIN:g}; own files: no hash equal): **{verdict}**."
    first = origins(setting)[0]
    series = {f"unbroken on {first}": sorted(reference.items())}
    for leg in found:
        if leg.begun == first and leg.ranks == setting.sizes[-1]:
            series[f"{leg.arm}, resumed on {leg.ranks}"] = sorted(
                (s, v) for s, v in leg.losses.items() if s >= setting.steps // 2
            )
    pages.write(out, "resume", said, pages.lines("Loss, resumed at half of the steps", series, x="step", y="loss"))
    return holds


if __name__ == "__main__":
    main_of(experiment, __doc__, FULL, USUAL)
