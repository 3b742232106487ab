"""The announced experiments with a control arm, one command each; docs/evidence.md has what they gave.

    python -m experiments.resume          checkpoints of 2 and 4 ranks, resumed on 1, 2, 4 and 8
    python -m experiments.canonical       bit-identical weights across sizes, and their price
    python -m experiments.from_scratch    the same model from scratch on 1, 2, 4 and 8 ranks, several data seeds
    python -m experiments.mixture         whether the ranking of two mixtures depends on the number of ranks

Every run is a run of the product: its launcher, agents and trainer, real ranks on this machine. Only the loader differs
between the arms. Each command prints its table, writes it with the picture to ``--out``, and exits 1 where its stated rule
does not hold.
"""
