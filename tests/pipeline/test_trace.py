"""What a step held, recomputed from a run's directory: the documents, and the digest that the ledger has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zephon
from zephon.errors import ConfigError
from zephon.exits import Exit
from zephon.io.named import listings
from zephon.launch.cli.main import main
from zephon.launch.contract import Seen, contract_of
from zephon.ops.tokenizers import load_tokenizer
from zephon.pipeline.experiment import pipeline
from zephon.pipeline.trace import document_named
from zephon.pipeline.trace_document import trace_document
from zephon.run.calibration import write_calibration
from zephon.run.contract_file import write_contract
from zephon.run.directory import RunDir
from zephon.run.lane_cursors import MovedCursors
from zephon.run.ledger import Ledger, sequence_digest, step_digest
from zephon.run.specs import new_attempt
from zephon.spec.experiment import RunSpec

STEPS, LANES = 30, 4
Documents = list[list[Any]]


def write_data(folder: Path) -> None:
    folder.mkdir()
    for name, size in (("web", 31), ("code", 57), ("math", 23)):
        texts = [json.dumps({"text": f"{name} {i} " + "x" * (i * 7 % size)}) for i in range(400)]
        if name == "code":
            texts[3] = json.dumps({"other": "no text"})  # goes into quarantine
        (folder / f"{name}.jsonl").write_text("\n".join(texts) + "\n")


def spec_of(tmp_path: Path, **data: Any) -> RunSpec:
    datasets = {name: {"path": str(tmp_path / "data" / f"{name}.jsonl")} for name in ("web", "code", "math")}
    phases = {
        "begin": {"until": "8 steps", "mixture": {"web": 3.0, "code": 1.0}},
        "turn": {"until": "16 steps", "change": "linear", "mixture": {"web": 1.0, "code": 1.0}},
        "end": {"mixture": {"math": 1.0, "code": 1.0}},
    }
    return RunSpec.from_dict(
        {
            "name": "traced",
            "runs": str(tmp_path / "runs"),
            "global_batch_size": 8,
            "data": {"datasets": datasets, "phases": phases, "on_error": "quarantine", "chunk_bytes": 1024, **data},
            "tokenizer": {"id": "bytes"},
            "pipeline": {"context_length": 63, "shuffle_buffer": 8, "flush_every_k_chunks": 2},
            "lanes": {"count": LANES},
            "trainer": {"steps": STEPS},
        }
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Documents]]:
    """A run directory as a trainer leaves it, restarted once, and the documents of each step as they were delivered."""
    tmp_path = tmp_path_factory.mktemp("traced")
    write_data(tmp_path / "data")
    spec = spec_of(tmp_path)
    rundir = RunDir(f"{spec.runs}/traced")
    new_attempt(rundir, spec)
    write_contract(rundir, contract_of(spec, seen=Seen(files=listings(spec.data.datasets))))
    delivered: list[Documents] = []
    state: Any = None
    for first, last in ((0, 13), (13, STEPS)):
        built = pipeline(spec, load_tokenizer("bytes"), dp_rank=0, dp_size=1)
        write_calibration(rundir, built.calibrate())
        if state is not None:
            built.restore(state)
        moved = MovedCursors()
        with Ledger(rundir.path("ledger.jsonl")) as ledger:
            for step, batches in zip(range(first, last), built.steps(), strict=False):
                documents, digests = [], []
                for batch in batches:
                    documents += [[*map(str, spans)] for spans in batch.documents()]
                    digests += [sequence_digest(row) for row in np.asarray(batch.fields["input_ids"])]
                delivered.append(documents)
                state = built.checkpoint()
                digest, lanes = step_digest(digests, LANES)
                ledger.append(step=step, digest=digest, lanes=lanes, loss=1.0, **moved.of(state["lanes"]))
        built.close()
    return Path(rundir.root), delivered


def test_every_step_has_the_documents_it_had_and_the_digest_of_the_ledger(run: tuple[Path, list[Documents]]) -> None:
    folder, delivered = run
    for step in range(STEPS):
        traced = zephon.trace(str(folder), step=step)
        assert traced.agrees
        assert traced.replayed == 0, "from the cursors before the step, not from the start of the run"
        assert [[*map(str, row.documents)] for row in traced.rows] == delivered[step]
    assert [(row.slot, row.lane, row.row) for row in traced.rows] == [(i, i // 2, i % 2) for i in range(8)]
    assert {span.dataset for row in traced.rows for span in row.documents} == {"math", "code"}
    assert all(len(row.text) > 20 for row in traced.rows)


def test_a_step_that_comes_is_foretold(run: tuple[Path, list[Documents]], tmp_path: Path) -> None:
    folder, delivered = run
    short = tmp_path / "short"
    short.mkdir()
    for name in ("attempts", "calibration.json", "contract.json"):
        (short / name).symlink_to(folder / name)
    lines = (folder / "ledger.jsonl").read_text().splitlines(keepends=True)
    (short / "ledger.jsonl").write_text("".join(lines[:20]))
    traced = zephon.trace(str(short), step=23)
    assert (traced.agrees, traced.replayed) == (None, 3)
    assert [[*map(str, row.documents)] for row in traced.rows] == delivered[23]


def test_the_command_shows_rows_and_tells_where_the_ledger_disagrees(
    run: tuple[Path, list[Documents]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, delivered = run
    assert main(["trace", str(folder), "--step", "5", "--text"]) == 0
    shown = capsys.readouterr().out
    assert "step 5: 8 rows" in shown
    assert "the digest is that of the ledger" in shown
    assert delivered[5][0][0] in shown
    assert main(["trace", str(folder), "--step", "5", "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["agrees"] is True
    assert plain["rows"][0]["documents"][0]["address"][0] in ("web", "code")
    other = tmp_path / "other"
    other.mkdir()
    for name in ("attempts", "calibration.json", "contract.json"):
        (other / name).symlink_to(folder / name)
    (other / "ledger.jsonl").write_text((folder / "ledger.jsonl").read_text().replace('"digest":"', '"digest":"0'))
    assert main(["trace", str(other), "--step", "5"]) == Exit.DISAGREES
    assert main(["trace", str(folder)]) == Exit.REFUSED


def test_files_that_are_not_those_of_the_run_are_refused(run: tuple[Path, list[Documents]]) -> None:
    folder, _ = run
    data = folder.parent.parent / "data" / "math.jsonl"
    before = data.read_text()
    try:
        data.write_text(before + before)
        with pytest.raises(ConfigError, match=r"data\.datasets\.math: 1 files of"):
            zephon.trace(str(folder), step=3)
    finally:
        data.write_text(before)
    with pytest.raises(ConfigError, match="step=-1 is below 0"):
        zephon.trace(str(folder), step=-1)


def test_the_steps_of_a_document_are_those_that_hold_it(
    run: tuple[Path, list[Documents]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = run
    held: dict[tuple[str, str, int], set[int]] = {}
    for step in range(STEPS):
        for row in zephon.trace(str(folder), step=step).rows:
            for span in row.documents:
                held.setdefault(tuple(span.address), set()).add(step)  # type: ignore[arg-type]
    for address in list(held)[::97]:
        visits = trace_document(str(folder), address)
        assert {step for visit in visits for step in visit.steps} == held[address], address
        assert [visit.epoch for visit in visits] == list(range(len(visits)))
    address = next(iter(held))
    assert main(["trace", str(folder), "--document", ":".join(map(str, address))]) == 0
    assert f"step {min(held[address])}" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="does not exist"):
        trace_document(str(folder), (address[0], address[1], 1))
    with pytest.raises(ConfigError, match="not of the form"):
        document_named("web")
