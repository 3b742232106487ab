"""The same run on 1, 2, 4 and 8 ranks with canonical and with default reduction: bits of the weights, and the price.

    python -m experiments.canonical [--tiny] [--out DIR]

Rule: with canonical reduction the weights of the last checkpoint have the same SHA-256 on every number of ranks.
"""

from __future__ import annotations

import hashlib
import statistics
from pathlib import Path

from experiments import pages
from experiments.arms import CANONICAL, OURS, Arm, Setting, corpus, losses, main_of, spec_of, train
from experiments.quality import weights
from experiments.resume import FULL
from zephon.run import metrics
from zephon.run.directory import RunDir

USUAL = Setting(steps=200)


def sha256(run: RunDir) -> str:
    """Of all parameters, by name."""
    digest = hashlib.sha256()
    for name, tensor in sorted(weights(run).items()):
        digest.update(name.encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


def seconds(run: RunDir) -> float:
    """The median step's, without the first five."""
    return statistics.median(entry["seconds"]["step"] for entry in metrics.series(run)[5:])


def experiment(folder: Path, setting: Setting, out: Path) -> bool:
    """Whether the rule holds."""
    text, cells, sums = corpus(folder / "text", setting), list[tuple[object, ...]](), dict[Arm, list[str]]()
    alone: dict[Arm, dict[int, float]] = {}
    apart: dict[str, list[tuple[float, float]]] = {}
    for arm in (CANONICAL, OURS):
        for ranks in setting.sizes:
            run = train(spec_of(text, setting, arm, folder / str(ranks), name=arm.reduction), arm, ranks)
            sums.setdefault(arm, []).append(sha256(run))
            values = losses(run)
            reference = alone.setdefault(arm, values)
            distances = {step: abs(values[step] - reference[step]) for step in reference}
            if ranks == setting.sizes[-1]:
                apart[f"{arm.reduction}, {ranks} ranks"] = sorted(distances.items())
            cells.append((arm.reduction, ranks, sums[arm][-1][:12], f"{max(distances.values()):.1e}", f"{seconds(run):.4f}"))
    holds = len(set(sums[CANONICAL])) == 1
    heads = ("reduction", "ranks", "SHA-256 of the weights", "largest distance of the loss from one rank", "seconds a step")
    verdict = "holds" if holds else "DOES NOT HOLD"
    said = pages.table(heads, cells)
    said += f"\n\nRule (canonical: one SHA-256 of the weights on every number of ranks): **{verdict}**. "
    said += f"Default reduction has {len(set(sums[OURS]))} on {len(setting.sizes)} numbers of ranks."
    title = f"Distance of the loss from the run on {setting.sizes[0]} rank, by reduction"
    pages.write(out, "canonical", said, pages.lines(title, apart, x="step", y="distance"))
    return holds


if __name__ == "__main__":
    main_of(experiment, __doc__, FULL, USUAL)
