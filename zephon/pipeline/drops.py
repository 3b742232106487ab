"""Warnings about documents that are dropped: once for each reason while it happens, and at the end of the data in all.

pack_flat: longer than max_length: 31 documents dropped so far (30.1% of those read), 530,112 tokens (96.4%), the first of
dataset 'web', shard 'a.jsonl', byte 1200; to keep them: use algorithm="wrap" or "best_fit_wrap", or split_long_samples=True
"""

from __future__ import annotations

import warnings

from zephon.engine.meters import Meters
from zephon.types import DropSummary, sum_by_reason

_WHAT_TO_SET = {
    "longer than max_length": 'use algorithm="wrap" or "best_fit_wrap", tokenize(split_long_samples=True), or longer rows',
    "shorter than min_sequence_length": "lower min_sequence_length",
    "no field": "name the right field, or repair the documents",
    "None": "return the document instead of None, or drop_none=False to make it an error",
    "more than its share": "give max_buffer_size, so that they wait instead",
    "no supervised token": "check the roles of the messages, loss_scope and max_length",
    "(sequences)": "use batch(drop_last=False), or a smaller global batch",
}
_SEQUENCES = " (sequences)"  # which are no documents of their own
_ASKED = "skip:"  # by a call of its own for these very documents


class DropWarning(UserWarning):
    """Documents were dropped. To silence it, filter this category; `SampleBatch.dropped` names them all the same."""


class Drops:
    """What a pipeline has dropped, and what of it has been warned of."""

    def __init__(self, meters: Meters) -> None:
        self._meters = meters
        self._sums: dict[str, DropSummary] = {}
        self._warned: dict[str, int] = {}

    def note(self, dropped: tuple[DropSummary, ...]) -> None:
        """A batch has come with these; what is dropped for a new reason is warned of."""
        self._sums = {summary.reason: summary for summary in sum_by_reason([*self._sums.values(), *dropped])}
        for reason in {summary.reason for summary in dropped} - self._warned.keys():
            self._warn(self._sums[reason], "so far")

    def end(self, left: tuple[DropSummary, ...] = ()) -> None:
        """The data has ended: what more was dropped since it was warned of, and what no step was left for.

        Args:
            left: what is dropped after the last step.
        """
        self._sums = {summary.reason: summary for summary in sum_by_reason([*self._sums.values(), *left])}
        for reason, summary in self._sums.items():
            if summary.count > self._warned.get(reason, 0):
                self._warn(summary, "in all")

    def _warn(self, summary: DropSummary, when: str) -> None:
        if summary.reason.startswith(_ASKED):
            return
        self._warned[summary.reason] = summary.count
        # Stages drop before documents are counted, accumulators after it; only the latter know tokens.
        read = sum(self._meters.documents.values()) + sum(s.count for s in self._sums.values() if not s.tokens)
        if summary.reason.endswith(_SEQUENCES):
            text = f"{summary.reason.removesuffix(_SEQUENCES)}: {summary.count:,} sequences dropped"
        else:
            text = f"{summary.reason}: {summary.count:,} documents dropped {when}"
            text += f" ({summary.count / read:.1%} of those read)" if read >= summary.count else ""
        if summary.tokens:
            tokens = summary.tokens + sum(self._meters.tokens.values())
            text += f", {summary.tokens:,} tokens ({summary.tokens / tokens:.1%})"
        text += f", the first of {summary.addresses[0]}" if summary.addresses else ""
        remedy = next((remedy for part, remedy in _WHAT_TO_SET.items() if summary.reason.endswith(part)), None)
        warnings.warn(f"{text}; to keep them: {remedy or 'repair what is named'}", DropWarning, stacklevel=4)
