"""Which stored fields of a stream have one number a token, by dataset: one rule, decided before the first chunk."""

from __future__ import annotations

from collections.abc import Sequence

from zephon.engine.token_columns import refuse_different, token_columns_of
from zephon.ops.chat import TokenizeChat
from zephon.ops.op import Op, StageOp
from zephon.ops.pack import Pack
from zephon.ops.tokenize import Tokenize
from zephon.types import TokenColumns
from zephon.work import WorkSource


def columns_of_stream(source: WorkSource, ops: Sequence[Op], stages: Sequence[StageOp]) -> tuple[TokenColumns | None, ...]:
    """By dataset; nothing where a tokenizer makes all of them.

    Args:
        ops: of the pipeline, in order.
        stages: those of them that run before the first accumulator.

    Raises:
        ConfigError: datasets that are packed into the same rows have different ones.
    """
    if stages and isinstance(stages[-1], (Tokenize, TokenizeChat)) and not stages[-1].preserve_upstream_payload:
        return ()
    through = [stage.stage() for stage in stages]
    rules = tuple(token_columns_of(source, index, through) for index in range(len(source.datasets)))
    pack = next((op for op in ops if isinstance(op, Pack)), None)
    if pack is not None and pack.homogeneity == "none":
        refuse_different([rule for rule in rules if rule is not None])
    return rules
