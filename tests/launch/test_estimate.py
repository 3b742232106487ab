"""What a run will take is what the real model has."""

from __future__ import annotations

from zephon.launch.estimate import estimate


def test_the_estimate_counts_the_parameters_of_the_real_model() -> None:
    from zephon.launch.config.compose import compose
    from zephon.train.model import Decoder

    spec = compose(["conf=bytes"]).spec
    count = sum(parameter.numel() for parameter in Decoder(spec.model, vocab_size=258).parameters())
    assert estimate(spec).parameters == count
