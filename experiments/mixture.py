"""Two mixtures compared on 1 and on 8 ranks: does their ranking depend on the number of ranks?

    python -m experiments.mixture [--tiny] [--seeds N] [--steps N] [--out DIR]

Rule: with this loader the difference of the mixtures in held-out bits per byte has the same sign on every number of ranks, in
every seed, and moves by less than a tenth of itself. What own files do is reported.
"""

from __future__ import annotations

from pathlib import Path

from experiments import pages
from experiments.arms import CONTROL, OURS, Setting, corpus, main_of, spec_of, train
from experiments.intervals import paired_bootstrap, spread
from experiments.quality import Judge
from experiments.resume import FULL

MIXTURES = {"A": {"docs": 0.55, "code": 0.45}, "B": {"docs": 0.45, "code": 0.55}}
MOVES = 0.1
USUAL = Setting(sizes=(1, 8), steps=500)


def experiment(folder: Path, setting: Setting, out: Path) -> bool:
    """Whether the rule holds."""
    text = corpus(folder / "text", setting)
    judge, cells, holds, series = Judge(text, setting.length), [], True, dict[str, list[tuple[float, float]]]()
    turned = dict.fromkeys((OURS.name, CONTROL.name), 0)
    for seed in setting.seeds:
        for arm in (OURS, CONTROL):
            differences = []
            for ranks in (setting.sizes[0], setting.sizes[-1]):
                found = {}
                for name, weights in MIXTURES.items():
                    runs = folder / f"{arm.worker.split('.')[-1]}-{ranks}"
                    spec = spec_of(text, setting, arm, runs, name=f"{name.lower()}-{seed}", seed=seed, weights=weights)
                    found[name] = judge(train(spec, arm, ranks))
                a, b = found["A"], found["B"]
                differences.append(a.mean_bits - b.mean_bits)
                low, high = paired_bootstrap(a.documents, b.documents)
                better = "A" if differences[-1] < 0 else "B"
                certain = "yes" if low > 0 or high < 0 else "no"
                bits = (f"{a.mean_bits:.5f}", f"{b.mean_bits:.5f}", f"{differences[-1]:+.5f}")
                cells.append((seed, arm.name, ranks, *bits, better, f"{low:+.5f} to {high:+.5f}: {certain}"))
                series.setdefault(f"{arm.name}, {ranks} ranks", []).append((float(seed), differences[-1]))
            same = min(differences) > 0 or max(differences) < 0
            turned[arm.name] += not same
            if arm is OURS:
                holds &= same and spread(differences) < MOVES * abs(differences[0])
    heads = ("seed", "loader", "ranks", "A", "B", "A - B", "better", "95 % over documents, and whether it differs from 0")
    verdict = "holds" if holds else "DOES NOT HOLD"
    said = pages.table(heads, cells) + (
        f"\n\nSeeds in which the ranking depends on the number of ranks, of {len(setting.seeds)}: "
        f"{', '.join(f'{name} {count}' for name, count in turned.items())}."
        f"\n\nRule (this loader: one ranking on every number of ranks, the difference within {MOVES:.0%}): **{verdict}**."
    )
    title = "Difference of two mixtures in held-out bits per byte, by seed"
    pages.write(out, "mixture", said, pages.lines(title, series, x="seed", y="A - B", marks=True))
    return holds


if __name__ == "__main__":
    main_of(experiment, __doc__, FULL, USUAL)
