"""``python -m benchmarks [--quick]``: one table; every figure was taken in this run."""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.corpus import write_jsonl, write_many, write_row_groups, write_tokens
from benchmarks.floor import affinity
from benchmarks.measure import in_child
from benchmarks.plan_scale import measure as measure_plan
from benchmarks.prose import Prose


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smaller corpus and fewer rounds")
    quick = parser.parse_args().quick
    console = Console()
    table = Table("what", "measured", "wanted", title=f"zephon's loader on {len(affinity())} cores")
    with tempfile.TemporaryDirectory(prefix="zephon-bench-") as temporary:
        root = Path(temporary)
        # As with an installed package, whose modules are compiled once: else what is measured first is Python's compiler.
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = str(root / "bytecode")
        with console.status("writing the corpus"):
            prose = str(write_jsonl(root / "prose", 40 if quick else 150, documents=Prose().documents()))
            text = str(write_jsonl(root / "text", 20 if quick else 80))
            tokens = str(write_tokens(root / "tokens", Path(text), 10 if quick else 40))
            many = str(write_many(root / "many", 10_000 if quick else 100_000))
            groups = str(write_row_groups(root / "groups", Path(text), 30 if quick else 120))
            few = str(write_jsonl(root / "few", 10, files=10))
        rows = _rows(prose, text, tokens, groups, few, many, quick)
        with console.status("measuring") as status:
            for what, measured, wanted in rows:
                table.add_row(what, measured(), wanted)
                status.update(f"measured: {what}")
    console.print(table)


def _rows(prose: str, text: str, tokens: str, groups: str, few: str, many: str, quick: bool):  # type: ignore[no-untyped-def]
    size = 4_000_000 if quick else 16_000_000
    short, rounds = (2_000_000, 5) if quick else (4_000_000, 11)  # in a shorter pair the neighbours change less

    def ratio(folder: str, cores: int) -> str:
        how = {"folder": folder, "tokens": short if folder == prose else size, "rounds": rounds}
        cpu, clock = in_child("text", cores, **how), in_child("stream", cores, **how)
        return (
            f"{cpu['ratio']:.2f} of the floor by processor time ({cpu['loader']:.1f} of {cpu['floor']:.1f} Mtok/s per core), "
            f"{clock['ratio']:.2f} by the clock ({clock['loader']:.1f} of {clock['floor']:.1f} Mtok/s)"
        )

    def elsewhere(**options: object) -> str:
        """In other processes, whose processor time is not counted here: by the clock alone."""
        f = in_child("stream", 2, folder=prose, tokens=short, rounds=rounds, **options)
        return f"{f['ratio']:.2f} of the floor by the clock ({f['loader']:.1f} of {f['floor']:.1f} Mtok/s)"

    def pretokenized() -> str:
        f = in_child("tokens", 1, folder=tokens, tokens=size)
        return f"{f['wall']:.0f} Mtok/s by the clock, {f['cpu']:.0f} by processor time"

    def parquet() -> str:
        f = in_child("row_groups", 2, folder=groups, lines=text, tokens=size)
        return f"{f['ratio']:.2f} of the processor time of JSON Lines, Arrow holds at most {f['mb']:.0f} MB"

    def first(folder: str) -> str:
        f = in_child("first", 2, folder=folder)
        return f"{f['seconds']:.2f} s, {f['cpu']:.2f} s of processor"

    def state() -> str:
        f = in_child("state", 2, folder=text)
        return f"{f['bytes']} bytes a lane, {f['ms']:.2f} ms"

    def restore(step: int) -> str:
        f = in_child("restore", 2, folder=text, step=step, lanes=32)
        return f"{f['seconds']:.2f} s, {f['cpu']:.2f} s of processor"

    def lanes(count: int) -> str:
        f = in_child("lanes", 2, folder=text, lanes=count, tokens=size)
        return f"{f['cpu'] * 1e3:.0f} ms of processor per Mtok, {f['mb']:.0f} MB more"

    def meters() -> str:
        return f"{in_child('meters', 1, folder=text)['share']:.2%}"

    def far_plan() -> str:
        f = measure_plan()
        return (
            f"{f['plan_s']:.1f} s, {f['mb']:.0f} MB; a chunk {f['near_us']:.0f} us at position 0, {f['far_us']:.0f} us at 10^9"
        )

    yield "raw text, 1 core", lambda: ratio(prose, 1), "0.85, aim 0.95"
    yield "raw text, 2 cores", lambda: ratio(prose, 2), "0.85, aim 0.95"
    yield "raw text, 2 cores, process runner", lambda: elsewhere(runner="process"), "0.85, aim 0.95"
    yield "raw text, 2 cores, isolated", lambda: elsewhere(isolated=True), "-"
    yield "text whose words the tokenizer all remembers, 1 core", lambda: ratio(text, 1), "-"
    yield "text whose words the tokenizer all remembers, 2 cores", lambda: ratio(text, 2), "-"
    yield "pretokenized, 1 core", pretokenized, "50 Mtok/s"
    yield "text in four Parquet files of one row group each", parquet, "-"
    yield "first batch, 10 files", lambda: first(few), "1.5 s"
    yield "first batch, many files", lambda: first(many), "1.5 s"
    yield "state, 8 lanes", state, "128 bytes, 1 ms"
    yield "restore and first batch, 32 lanes, step 100", lambda: restore(100), "2 s"
    yield "restore and first batch, 32 lanes, step 100,000", lambda: restore(100_000), "the same"
    for count in (1, 8, 32, 128):
        yield f"{count} lanes on one rank", lambda count=count: lanes(count), "linear in buffers"
    yield "meters", meters, "under 1%"
    yield "plan of 100 TB in a million shards, 512 lanes", far_plan, "5 s, 500 MB, position 10^9 as position 0"


if __name__ == "__main__":
    main()
