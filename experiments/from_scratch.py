"""The same model from scratch on 1, 2, 4 and 8 ranks: one global batch, the same first weights, several data seeds.

    python -m experiments.from_scratch [--tiny] [--seeds N] [--steps N] [--out DIR]

For each seed and arm: the range over the numbers of ranks of held-out bits per byte, top-1 and cloze accuracy. Beside it
stand the noise (four evaluations of one model with other batches, so other rounding), the range across seeds, and 95 %
intervals.

Rule: in every seed the range of own files is above the noise and at least five times this loader's; with canonical
reduction it is exactly 0. What is not significant is reported as such.
"""

from __future__ import annotations

from pathlib import Path

from experiments import pages
from experiments.arms import CANONICAL, CONTROL, OURS, Arm, Setting, corpus, main_of, spec_of, train
from experiments.intervals import interval, paired_bootstrap, said, sign_test, spread
from experiments.quality import Judge, Quality
from experiments.resume import FULL

ARMS = (OURS, CANONICAL, CONTROL)
TIMES = 5
USUAL = Setting(steps=1000)
Found = dict[tuple[Arm, int, int], Quality]  # by arm, seed and number of ranks


def trained(folder: Path, setting: Setting) -> tuple[Found, float]:
    """All runs, and the noise of one evaluation."""
    text = corpus(folder / "text", setting)
    judge, found, noise = Judge(text, setting.length), Found(), 0.0
    for seed in setting.seeds:
        for arm in ARMS:
            for ranks in setting.sizes:
                runs = folder / f"{arm.worker.split('.')[-1]}-{arm.reduction}-{ranks}"
                run = train(spec_of(text, setting, arm, runs, name=f"seed-{seed}", seed=seed), arm, ranks)
                found[arm, seed, ranks] = judge(run)
                if not noise:
                    noise = spread([judge(run, rows=rows).mean_bits for rows in (4, 8, 16, 32)])
    return found, noise


def ranges(found: Found, arm: Arm, setting: Setting, what: str) -> list[float]:
    """Over the numbers of ranks, by seed."""
    return [spread([float(getattr(found[arm, seed, ranks], what)) for ranks in setting.sizes]) for seed in setting.seeds]


def experiment(folder: Path, setting: Setting, out: Path) -> bool:
    """Whether the rule holds."""
    found, noise = trained(folder, setting)
    by_seed = []
    for seed in setting.seeds:
        for arm in ARMS:
            values = [found[arm, seed, ranks] for ranks in setting.sizes]
            bits = [f"{quality.mean_bits:.6f}" for quality in values]
            low, high = paired_bootstrap(values[-1].documents, values[0].documents)
            differs = "yes" if low > 0 or high < 0 else "no"
            cells = [f"{spread([getattr(q, w) for q in values]):.2e}" for w in ("mean_bits", "top_1", "cloze")]
            by_seed.append((seed, arm.name, *bits, *cells, f"{low:.5f} to {high:.5f}: {differs}"))
    heads = ("seed", "loader", *(f"bits per byte, {ranks}" for ranks in setting.sizes), "range", "top-1 range", "cloze range")
    last = f"{setting.sizes[-1]} against {setting.sizes[0]} ranks: 95 % over documents, and whether they differ"
    ours, canonical, control = (ranges(found, arm, setting, "mean_bits") for arm in ARMS)
    seeds = spread([found[OURS, seed, setting.sizes[0]].mean_bits for seed in setting.seeds])
    larger = sum(a > b for a, b in zip(control, ours, strict=True))
    holds = all(c > noise and c >= TIMES * o for c, o in zip(control, ours, strict=True)) and not any(canonical)
    quotients = [c / o if o else float("inf") for c, o in zip(control, ours, strict=True)]
    verdict = "holds" if holds else "DOES NOT HOLD"
    text = [
        pages.table((*heads, last), by_seed),
        "",
        f"Noise (four evaluations of one model, range): {noise:.1e} bits per byte. Range across seeds on {setting.sizes[0]} "
        f"rank, this loader: {seeds:.4f}.",
        f"Mean range over sizes, 95 % interval by Student's t over {len(setting.seeds)} seeds: this loader "
        f"{said(interval(ours))}, canonical {said(interval(canonical))}, own files {said(interval(control))}.",
        f"Own files against this loader, by seed: {', '.join(f'{q:.0f} times' for q in quotients)}. The range of own files is "
        f"larger in {larger} of {len(setting.seeds)} seeds; by chance alone that has probability "
        f"{sign_test(larger, len(setting.seeds)):.3f} (sign test), so "
        f"{'it is' if sign_test(larger, len(setting.seeds)) < 0.05 else 'these seeds alone are NOT'} significant at 0.05.",
        "",
        f"Rule (own files: above the noise and {TIMES} times this loader's in every seed; canonical: 0): **{verdict}**.",
    ]
    series = {
        f"{arm.name}, seed {seed}": [(float(ranks), found[arm, seed, ranks].mean_bits) for ranks in setting.sizes]
        for seed in setting.seeds[:2]
        for arm in (OURS, CONTROL)
    }
    picture = pages.lines("Held-out bits per byte by number of ranks", series, x="ranks", y="bits per byte")
    pages.write(out, "from_scratch", "\n".join(text), picture)
    return holds


if __name__ == "__main__":
    main_of(experiment, __doc__, FULL, USUAL)
