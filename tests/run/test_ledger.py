from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from zephon.errors import LedgerMismatch
from zephon.run.directory import RunDir
from zephon.run.ledger import FILE, Ledger, compare, read_ledger, sequence_digest, step_digest, steps_recorded, two_at_once


def write(path: Path, steps: range, *, changed: int | None = None, lane: int = 0, loss: float = 0.5) -> None:
    with Ledger(str(path)) as ledger:
        for step in steps:
            rows = [np.array([step, slot, step == changed and slot // 2 == lane]) for slot in range(4)]
            digest, lanes = step_digest([sequence_digest(row) for row in rows], 2)
            ledger.append(step=step, digest=digest, lanes=lanes, world_size=1, loss=loss)


def test_digests_are_what_the_design_says_for_any_integer_type() -> None:
    row = np.array([1, 2, 50256], np.uint32)
    assert sequence_digest(row) == hashlib.sha256(b"\1\0\0\0\2\0\0\0\x50\xc4\0\0").digest()
    assert sequence_digest(row.astype(np.int64)) == sequence_digest(row) == sequence_digest(np.repeat(row, 2)[::2])
    sequences = [bytes([i]) * 32 for i in range(4)]
    digest, lanes = step_digest(sequences, 2)
    assert lanes == [hashlib.sha256(sequences[0] + sequences[1]).digest(), hashlib.sha256(sequences[2] + sequences[3]).digest()]
    assert digest == hashlib.sha256(lanes[0] + lanes[1]).digest()
    with pytest.raises(ValueError, match="3 sequence digests"):
        step_digest(sequences[:3], 2)


def test_equal_ledgers_agree_and_repeated_steps_are_compared(tmp_path: Path) -> None:
    one, other = tmp_path / "one.jsonl", tmp_path / "other.jsonl"
    write(one, range(6))
    write(one, range(4, 9))
    write(other, range(9))
    assert len(list(read_ledger(str(one)))) == 11
    assert compare(str(one), str(other)).equal
    assert compare(str(one)).equal
    assert compare(str(one)).steps == 9


def test_the_first_difference_names_step_and_lane(tmp_path: Path) -> None:
    one, other = tmp_path / "one.jsonl", tmp_path / "other.jsonl"
    write(one, range(6))
    write(other, range(6), changed=3, lane=1)
    found = compare(str(one), str(other))
    assert (found.equal, found.first, found.lane) == (False, 3, 1)
    assert "step 3" in found.sentence
    assert "lane 1" in found.sentence


def test_a_repeated_step_with_other_data_stops_the_writer(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    write(path, range(5))
    with pytest.raises(LedgerMismatch, match=r"step 4 .*first lane that differs is 1"):
        write(path, range(4, 6), changed=4, lane=1)
    assert len(list(read_ledger(str(path)))) == 5


def test_ledgers_without_a_common_step_prove_nothing(tmp_path: Path) -> None:
    one, other = tmp_path / "one.jsonl", tmp_path / "other.jsonl"
    write(one, range(3))
    write(other, range(3, 6))
    assert not compare(str(one), str(other)).equal
    assert "nothing was compared" in compare(str(one), str(other)).sentence


def test_a_line_torn_by_a_crash_is_mended_and_one_elsewhere_is_passed_over_with_a_warning_and_missed(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    write(path, range(3))
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    assert [entry.step for entry in read_ledger(str(path))] == [0, 1]
    write(path, range(2, 4))
    assert [entry.step for entry in read_ledger(str(path))] == [0, 1, 2, 3]
    first, second, third = whole.splitlines(keepends=True)
    for torn in (second[:10] + second[30:], b"\0" * 50 + b"\n", b"7\n", b'{"step": 1}\n', b'"\xff"\n'):
        path.write_bytes(first + torn + third)
        with pytest.warns(UserWarning, match="line 2 of .* is torn"):
            assert [entry.step for entry in read_ledger(str(path))] == [0, 2]
        with pytest.warns(UserWarning, match="torn"):
            assert compare(str(path)).sentence.endswith("; 1 steps have no line, the first is step 1")
    path.write_bytes(first + b"\0" * 4096)  # what a file system leaves after a power cut
    write(path, range(1, 3))
    assert path.read_bytes() == whole


def write_by(path: Path, steps: range, attempt: int, generation: int) -> None:
    with Ledger(str(path)) as ledger:
        for step in steps:
            digest, lanes = step_digest([sequence_digest(np.array([step]))] * 2, 2)
            ledger.append(step=step, digest=digest, lanes=lanes, attempt=attempt, generation=generation)


def test_two_memberships_that_wrote_at_once_are_noticed_and_named(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    write_by(path, range(5), 1, 1)
    write_by(path, range(3, 6), 1, 2)
    write_by(path, range(5, 8), 2, 3)
    assert two_at_once(str(path)) == ""
    write_by(path, range(6, 7), 1, 2)
    write_by(path, range(8, 9), 2, 3)
    assert compare(str(path)).equal, "their digests alone do not tell"
    assert two_at_once(str(path)) == (
        "two wrote at once: step 6 is by attempt 1, generation 2, after step 7 by attempt 2, generation 3"
    )


def test_how_far_losses_are_apart_is_said_and_does_not_decide(tmp_path: Path) -> None:
    one, other, nothing = tmp_path / "one.jsonl", tmp_path / "other.jsonl", tmp_path / "nan.jsonl"
    write(one, range(6))
    write(other, range(4))
    write(other, range(4, 6), loss=0.5 * (1 + 2**-20))
    write(nothing, range(6), loss=float("nan"))
    found = compare(str(one), str(other))
    assert found.equal
    assert found.apart == pytest.approx(2**-20, rel=1e-3)
    assert found.sentence.endswith("the same global batch at every step; losses 9.5e-07 apart at most, relative")
    write(other, range(3), loss=1.0)  # a step repeated in the second ledger does not hide what it was first
    assert compare(str(other)).apart == 0.5
    assert compare(str(one), str(one)).sentence.endswith("losses equal to the last bit")
    assert compare(str(one)).apart is None
    assert (compare(str(one), str(nothing)).apart, compare(str(one), str(nothing)).equal) == (None, True)


def test_the_number_of_recorded_steps_comes_from_the_last_whole_line(tmp_path: Path) -> None:
    rundir = RunDir(str(tmp_path))
    assert steps_recorded(rundir) == 0
    lanes = [bytes([lane % 256]) * 32 for lane in range(20_000)]  # a line longer than what is read at first
    with Ledger(rundir.path(FILE)) as ledger:
        ledger.append(step=0, digest=bytes(32), lanes=[bytes(32)])
        assert steps_recorded(rundir) == 1
        ledger.append(step=1, digest=bytes(32), lanes=lanes)
    assert steps_recorded(rundir) == 2
    with open(rundir.path(FILE), "a", encoding="utf-8") as file:
        file.write('{"step": 2, "dig')
    assert steps_recorded(rundir) == 2
    Path(rundir.path(FILE)).write_text("")
    assert steps_recorded(rundir) == 0
