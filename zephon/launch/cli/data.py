"""``data``: look before training. ``ls`` lists, ``head`` shows documents as they will be read, ``check`` reads all of them.

zephon data ls s3://bucket/web/             one place
zephon data check conf=exp1                 all datasets of an experiment, and its held-out data against them
"""

from __future__ import annotations

import dataclasses
import json
import os

import numpy as np
from rich.console import Console
from rich.table import Table

from zephon.errors import ConfigError, nearest
from zephon.exits import Exit
from zephon.fastjson import Json
from zephon.io import Dataset, read
from zephon.launch.cli.arguments import Arguments
from zephon.launch.cli.survey_text import print_survey
from zephon.launch.config.compose import compose
from zephon.ops.fields import extract_token_columns
from zephon.ops.tokenizers import Tokenizer, load_tokenizer
from zephon.pipeline.experiment import datasets_of, listed_at, text_field, with_tokens
from zephon.pipeline.pipeline import Pipeline
from zephon.pipeline.survey import survey
from zephon.spec.experiment import RunSpec
from zephon.types import Columns, Ragged
from zephon.work import StaticMixtureWorkSource

ACTIONS = ("ls", "head", "check")
SAMPLED = 8  # pieces of a dataset, of which the numbers of documents and tokens are estimated
_SHOWN = 20  # shards, and characters or tokens of a document times a hundred


@dataclasses.dataclass(frozen=True)
class _Data:
    """What is looked at: datasets with the fields of their texts, held-out ones, and the experiment where one was named."""

    datasets: list[Dataset]
    fields: list[str]
    held_out: list[Dataset]
    held_out_fields: list[str]
    spec: RunSpec | None
    tokenizer: Tokenizer


def data(arguments: Arguments, console: Console) -> int:
    """Carries out one of `ACTIONS`; 2 where ``check`` has met broken records or held-out text that is trained on."""
    names = arguments.names
    if not names or names[0] not in ACTIONS:
        raise ConfigError(
            f"zephon data needs what to do: {', '.join(ACTIONS)}" + (f", not {names[0]!r}" if names else ""),
            remedy=(nearest(names[0], ACTIONS) + "; " if names else "") + "for example: zephon data head data/*.jsonl",
        )
    chosen = _chosen(arguments, names[1:])
    if names[0] == "ls":
        return _list(chosen, arguments, console)
    if names[0] == "head":
        return _head(chosen, arguments, console)
    return _check(chosen, arguments, console)


def _chosen(arguments: Arguments, urls: tuple[str, ...]) -> _Data:
    own = arguments.own
    if not urls:
        unused = [key for key in ("format", "field", "where") if key in own]
        if unused:
            raise ConfigError(
                f"{unused[0]}= belongs to a URL, and none was given",
                follows="it would have no effect",
                remedy=f"set it for a dataset: data.datasets.NAME.{unused[0]}=...",
            )
        spec = compose(arguments.overrides, config_dir=arguments.config_dir).spec
        held = spec.trainer.eval_data or {}
        return _Data(
            datasets_of(spec),
            [text_field(spec.data.datasets)] * len(spec.data.datasets),
            listed_at("trainer.eval_data", held) if held else [],
            [text_field(held)] * len(held),
            spec,
            load_tokenizer(spec.tokenizer.id, backend=spec.tokenizer.backend),
        )
    if arguments.overrides:
        raise ConfigError(
            f"a URL and {arguments.overrides[0]!r} were given",
            follows="one of the two would be ignored",
            remedy="look at a URL, or at the datasets of an experiment: zephon data check conf=exp1",
        )
    dataset = Dataset.from_path("data", urls[0], fmt=own.get("format")).select(where=own.get("where"))
    field = own.get("field") or _field_with_text(dataset)
    if "{" in field:
        dataset, field = dataset.renamed({field: "text"}), "text"
    return _Data([dataset], [field], [], [], None, load_tokenizer("gpt2"))


def _field_with_text(dataset: Dataset) -> str:
    """``text`` where there is one, else the first field that holds some."""
    first = next(iter(dataset.head(1)), {})
    texts = [name for name, value in first.items() if isinstance(value, str) and not name.startswith("__")]
    return "text" if "text" in first or not texts else texts[0]


def _number(arguments: Arguments, key: str, default: int) -> int:
    text = arguments.own.get(key, str(default))
    if not text.isdigit() or int(text) < 1:
        raise ConfigError(f"{key}={text!r} is not a whole number from 1", remedy=f"for example: {key}={default}")
    return int(text)


def _list(chosen: _Data, arguments: Arguments, console: Console) -> int:
    rows = [_estimated(dataset, field, chosen) for dataset, field in zip(_all(chosen), _all_fields(chosen), strict=True)]
    if arguments.json:
        print(json.dumps({"datasets": rows}))
        return 0
    table = Table(box=None, padding=(0, 2))
    for title in ("dataset", "format", "shards", "bytes", "documents", "tokens", "estimated from"):
        table.add_column(title, justify="left" if title in ("dataset", "format") else "right")
    for row in rows:
        about = [f"{row[name]:,}" for name in ("bytes", "documents", "tokens", "sampled_documents")]
        table.add_row(
            row["name"], row["format"], f"{len(row['shards']):,}", *about[:1], *("~" + text for text in about[1:3]), about[3]
        )
    console.print(table)
    for row in rows:
        console.print(f"\n{row['name']}", style="bold")
        for shard in row["shards"][:_SHOWN]:
            console.print(f"{shard['bytes']:>16,}  {shard['name']}", highlight=False)
        if len(row["shards"]) > _SHOWN:
            console.print(f"{'':>16}  and {len(row['shards']) - _SHOWN:,} more (--json lists all)", highlight=False)
    return 0


def _all(chosen: _Data) -> list[Dataset]:
    return [*chosen.datasets, *chosen.held_out]


def _all_fields(chosen: _Data) -> list[str]:
    return [*chosen.fields, *chosen.held_out_fields]


def _estimated(dataset: Dataset, field: str, chosen: _Data) -> Json:
    """Shards and sizes, and documents and tokens as a sample has them."""
    source = StaticMixtureWorkSource([dataset])
    documents = tokens = 0
    sizes: list[int] = []
    for piece in source.sample(0, SAMPLED):
        columns = read(dataset, piece, [], sizes)
        documents += len(columns)
        tokens += len(_tokens(dataset, columns, field, chosen).values)
    measured = max(1, sum(sizes))
    return {
        "name": dataset.name,
        "format": dataset.format.name,
        "bytes": dataset.size,
        "documents": round(documents * dataset.size / measured),
        "tokens": round(tokens * dataset.size / measured),
        "sampled_documents": documents,
        "shards": [{"name": name, "bytes": size} for name, size in zip(dataset.shards, dataset.sizes.tolist(), strict=True)],
    }


def _tokens(dataset: Dataset, columns: Columns, field: str, chosen: _Data) -> Ragged:
    """Token ids of the documents: those of the experiment's own stage, or stored ones; without an experiment GPT-2's."""
    pipeline = Pipeline(StaticMixtureWorkSource([dataset]))
    if chosen.spec is not None:
        at, among = "data.datasets", chosen.spec.data.datasets
        if any(dataset is held for held in chosen.held_out):
            at, among = "trainer.eval_data", chosen.spec.trainer.eval_data or {}  # type: ignore[assignment]
        with_tokens(pipeline, chosen.spec, chosen.tokenizer, at, {dataset.name: among[dataset.name]})
    elif not any(name in columns.fields for name in ("input_ids", "tokens")):
        pipeline.tokenize(chosen.tokenizer, field=field, missing_field="skip")
    for op in pipeline.definition.graph.stages:
        columns = op.stage()(columns)
    ids = extract_token_columns(columns).fields.get("input_ids")
    return ids if isinstance(ids, Ragged) else Ragged.of([])


def _head(chosen: _Data, arguments: Arguments, console: Console) -> int:
    """The first documents of each dataset; of an experiment with the tokens and which of them are trained."""
    count, shown = _number(arguments, "count", 3), []
    for dataset, field in zip(_all(chosen), _all_fields(chosen), strict=True):
        for columns in _first(dataset, count):
            document: Json = {
                "dataset": dataset.name,
                "address": str(dataset.address(int(columns.shard[0]), int(columns.row[0]))),
            }
            document["fields"] = columns.document(0)
            if chosen.spec is not None:
                ids = _tokens(dataset, columns, field, chosen)[0]
                document["tokens"] = ids.tolist()
                document["trained"] = [0] + [1] * (len(ids) - 1)  # no label reaches over the end of a document
            shown.append(document)
    if arguments.json:
        print(json.dumps({"documents": shown}, default=_plain))
        return 0
    for document in shown:
        console.print(document["address"], style="bold", highlight=False)
        for name, value in document["fields"].items():
            console.print(f"  {name}: {_short(value)}", highlight=False)
        if "tokens" in document:
            pieces = [chosen.tokenizer.decode([token]) for token in document["tokens"][: 2 * _SHOWN]]
            console.print(f"  {len(document['tokens']):,} tokens: {'|'.join(map(_one_line, pieces))}", highlight=False)
            console.print(f"  trained: {sum(document['trained']):,} of them, all but the first", highlight=False)
    return 0


def _first(dataset: Dataset, count: int) -> list[Columns]:
    """The first documents in stored order, one each."""
    source = StaticMixtureWorkSource([dataset], shuffle_shards=False, shuffle_within_shard=False, chunk_bytes=1 << 16)
    plan, documents, position = source.plan(1), list[Columns](), 0
    while len(documents) < count and position < plan.first_pass and (chunk := plan.chunk(0, position)) is not None:
        columns = read(dataset, chunk)
        documents += [columns.take(np.array([row])) for row in range(min(len(columns), count - len(documents)))]
        position += 1
    return documents


def _short(value: object) -> str:
    text = _one_line(str(value.tolist() if isinstance(value, np.ndarray) else value))
    most = 100 * _SHOWN // 10
    return text if len(text) <= most else f"{text[:most]} ... ({len(text):,} characters)"


def _one_line(text: str) -> str:
    return text.replace("\n", "\\n")


def _plain(value: object) -> object:
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else repr(value)


def _check(chosen: _Data, arguments: Arguments, console: Console) -> int:
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    total = sum(dataset.size for dataset in _all(chosen))
    workers = _number(
        arguments, "workers", len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    if total < 4 << 20:
        workers = 1  # a process of its own takes longer to begin
    columns = (TextColumn("reading all of it"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        whole = bar.add_task("", total=total)
        result = survey(
            chosen.datasets,
            chosen.fields,
            chosen.held_out,
            chosen.held_out_fields,
            tokenizer=chosen.tokenizer.id,
            workers=workers,
            progress=lambda size: bar.advance(whole, size),
        )
    if arguments.json:
        print(json.dumps(result.to_json()))
    else:
        print_survey(result, console)
    return Exit.DISAGREES if result.faulty else 0
