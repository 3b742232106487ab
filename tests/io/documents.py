"""What the tests of formats share."""

from __future__ import annotations

from pathlib import Path

from zephon import Dataset, Pipeline, StaticMixtureWorkSource


def as_bytes(path: Path, field: str, *, on_error: str) -> Pipeline:
    """A pipeline that gives the text of each document of a shard or folder as it is stored, byte by byte."""
    source = StaticMixtureWorkSource([Dataset.from_path("d", str(path))], shuffle_shards=False, shuffle_within_shard=False)
    made = Pipeline(source).options(runner="inline", on_error=on_error)
    return made.tokenize(tokenizer_id="bytes", field=field, special_tokens="none").batch(1)
