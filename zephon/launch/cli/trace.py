"""``trace RUN``: the documents of a step's global batch, or the steps of a document; recomputed, without training."""

from __future__ import annotations

import dataclasses
import json

from rich.console import Console

from zephon.errors import ConfigError
from zephon.exits import Exit
from zephon.launch.cli.arguments import Arguments
from zephon.launch.cli.views import run_of
from zephon.pipeline.trace import Trace, document_named, trace
from zephon.pipeline.trace_document import lines, trace_document

_SHOWN = 200  # characters of a row's text, where all of it was not asked for


def trace_run(arguments: Arguments, console: Console) -> int:
    """Prints what a step held; 2 where its digest is not the one in the ledger."""
    if (arguments.step is None) == (arguments.document is None):
        raise ConfigError(
            "zephon trace needs --step N or --document DATASET:SHARD:ROW",
            follows="nobody could say what is to be shown",
            remedy="name one of them: zephon trace RUN --step 100",
        )
    if arguments.document is not None:
        visits = trace_document(run_of(arguments).url, document_named(arguments.document))
        if arguments.json:
            print(json.dumps([dataclasses.asdict(visit) for visit in visits]))
        for line in [] if arguments.json else lines(visits):
            console.print(line, highlight=False)
        return Exit.DONE
    assert arguments.step is not None
    traced = trace(run_of(arguments).url, step=arguments.step)
    if arguments.json:
        shown = traced.to_dict()
        if arguments.text:
            for row, plain in zip(traced.rows, shown["rows"], strict=True):
                plain["text"] = row.text
        print(json.dumps(shown))
    else:
        _print(traced, console, text=arguments.text)
    return Exit.DISAGREES if traced.agrees is False else Exit.DONE


def _print(traced: Trace, console: Console, *, text: bool) -> None:
    verdict = {
        True: "the digest is that of the ledger",
        False: f"the ledger has another digest: {str(traced.recorded)[:16]}",
        None: "not trained yet, so that the ledger has no digest to compare",
    }[traced.agrees]
    console.print(f"step {traced.step}: {len(traced.rows)} rows, digest {traced.digest[:16]}; {verdict}", highlight=False)
    for row in traced.rows:
        console.print(f"slot {row.slot}, lane {row.lane}, row {row.row}", highlight=False)
        for span in row.documents:
            console.print(f"  {span}", markup=False, highlight=False)
        if text:
            console.print(f"  {row.text[:_SHOWN]!r}", markup=False, highlight=False)
