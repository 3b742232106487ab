"""How many tokens a byte of each dataset is: what turns a mixture in tokens into frequencies of chunks."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from fractions import Fraction

from zephon.errors import ConfigError
from zephon.types import Counts, Sampled


@dataclasses.dataclass(frozen=True)
class TokenEstimation:
    """Where tokens per byte come from.

    Args:
        primer: "measure" on a deterministic sample, tokens per byte by dataset name, or one number for all.
        measure: measure even when a primer is given; None means only when ``primer`` is "measure".
        calibration_samples: documents of each dataset to measure on at first. They come from eight places; where these differ
            so much that the standard error is above 1 %, from up to 64 places, with as many documents each.
        fallback_tokens_per_byte: used for a dataset whose documents hold no token.

    The measurement is made once per run, stored in the run directory and used by every node: it is whole numbers of
    tokens, bytes and millionths of error, the same on every machine that reads the same data.
    """

    primer: str | float | Mapping[str, float] = "measure"
    measure: bool | None = None
    calibration_samples: int = 2048
    fallback_tokens_per_byte: float = 0.25

    def __post_init__(self) -> None:
        if isinstance(self.primer, str) and self.primer != "measure":
            raise ConfigError(
                f"TokenEstimation(primer={self.primer!r}) is neither 'measure' nor a number nor numbers by dataset",
                remedy="use primer='measure', a float, or {dataset name: tokens per byte}",
            )

    @property
    def measures(self) -> bool:
        return self.primer == "measure" if self.measure is None else self.measure

    def primed(self, name: str) -> float:
        """Tokens per byte of the dataset ``name`` without a measurement."""
        if isinstance(self.primer, str):
            return self.fallback_tokens_per_byte
        if isinstance(self.primer, (int, float)):
            return float(self.primer)
        if name not in self.primer:
            raise ConfigError(
                f"TokenEstimation has no tokens per byte for dataset {name!r}, only for {sorted(self.primer)}",
                remedy=f"add {name!r} to primer, or use primer='measure'",
            )
        return float(self.primer[name])


def tokens_per_byte(name: str, measured: Counts | None, estimation: TokenEstimation) -> Fraction:
    """Of the dataset ``name``: as measured, or else as the estimation has it."""
    tokens, size = (measured or {}).get(name, Sampled(0, 0))[:2]
    return Fraction(tokens, size) if tokens and size else Fraction(estimation.primed(name))
