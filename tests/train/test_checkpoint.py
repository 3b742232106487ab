"""Checkpoints: complete or not there, loadable at any size, the same on every rank."""

from __future__ import annotations

import json
import resource
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.train.ranks import Meet, Ranks, on_ranks
from tests.train.synthetic import spec
from tests.train.training import job, some_steps, state_hash
from zephon.errors import SaveFailed, StateError
from zephon.run import checkpoints
from zephon.run.directory import RunDir
from zephon.spec.experiment import RunSpec
from zephon.train import checkpoint
from zephon.train.session import build


def train_and_save(meet: Meet, rank: int, some: RunSpec, folder: str, counts: list[int]) -> list[str]:
    """Trains and saves after each count of further steps; the state's hash at each save."""
    membership = meet(parallel=some.trainer.parallel, tensor=some.trainer.tensor_parallel)
    session = build(job(some, folder), membership)
    hashes = []
    for count in counts:
        some_steps(session, count)
        session.save()
        hashes.append(state_hash(session))
    session.settle()
    session.close()
    membership.leave()
    return hashes


def load_and_train(meet: Meet, rank: int, some: RunSpec, folder: str, count: int) -> dict[str, Any]:
    """Resumes, returns what it found, trains ``count`` steps more."""
    membership, log = meet(parallel=some.trainer.parallel), []
    the_job = job(some, folder)
    object.__setattr__(the_job, "log", log.append)
    try:
        session = build(the_job, membership)
    except StateError as error:
        membership.leave()
        return {"error": str(error), "log": log}
    found = {"step": session.step, "loaded": state_hash(session), "log": log}
    found["losses"] = some_steps(session, count)
    found["end"] = state_hash(session)
    session.close()
    membership.leave()
    return found


def step_folder(root: Path, step: int) -> Path:
    return root / "checkpoints" / checkpoints.name_of(step)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Checkpoints at steps 1, 2 and 3 of a one-rank canonical run, and the unbroken run's end."""
    folder = tmp_path_factory.mktemp("saved")
    some = spec(trainer__reduction="canonical")
    (hashes,) = on_ranks(train_and_save, 1, some, str(folder), [1, 1, 1, 3])
    shutil.rmtree(step_folder(folder, 6))
    return folder, hashes, some


@pytest.fixture
def run(saved, tmp_path):
    """A copy of ``saved`` to break."""
    shutil.copytree(saved[0], tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_resumed_canonical_run_ends_in_the_bits_of_the_unbroken_one(saved, run, size):
    _, hashes, some = saved
    found = on_ranks(load_and_train, size, some, str(run), 3)
    assert [(one["step"], one["loaded"], one["end"]) for one in found] == [(3, hashes[2], hashes[3])] * size


@pytest.mark.parametrize(
    "before, after",
    [
        (("fsdp", 2), ("ddp", 1)),
        pytest.param(("fsdp", 2), ("fsdp", 3), marks=pytest.mark.slow),
        pytest.param(("ddp", 2), ("fsdp", 4), marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("background", [True])
def test_weights_and_every_optimizer_field_are_bit_equal_after_resharding(tmp_path, before, after, background):
    wide = {"global_batch_size": 12, "lanes__count": 12, "checkpoint__background": background}
    (kind, size), (kind_after, size_after) = before, after
    hashes = on_ranks(train_and_save, size, spec(trainer__parallel=kind, **wide), str(tmp_path), [3])
    found = on_ranks(load_and_train, size_after, spec(trainer__parallel=kind_after, **wide), str(tmp_path), 1)
    assert {one["loaded"] for one in found} == {hashes[0][0]}


def test_an_interrupted_save_is_named_skipped_and_later_replaced(saved, run):
    _, _, some = saved
    (step_folder(run, 3) / checkpoints.MARK).unlink()
    (step_folder(run, 3) / ".metadata").unlink()
    found = on_ranks(load_and_train, 2, some, str(run), 1)
    assert [one["step"] for one in found] == [2, 2]
    assert found[0]["log"][0] == "checkpoint step-00000003 was never completed: skipped"
    on_ranks(train_and_save, 2, some, str(run), [1])
    assert checkpoints.complete_steps(RunDir(str(run)))[-1] == 3
    assert checkpoint.damage(RunDir(str(run)), 3) is None


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    "harm, words", [(Path.unlink, "is missing"), (cut, "bytes and should have"), (flip, "SHA-256 differs")]
)
def test_a_damaged_part_is_named_and_the_good_checkpoint_before_is_offered_and_used(saved, run, harm, words):
    harm(step_folder(run, 3) / "__0_0.distcp")
    refused = on_ranks(load_and_train, 2, saved[2], str(run), 1)
    for one in refused:
        assert "__0_0.distcp" in one["error"]
        assert words in one["error"]
        assert "checkpoint.resume=last_good to go back to step-00000002" in one["error"]
    found = on_ranks(load_and_train, 2, spec(trainer__reduction="canonical", checkpoint__resume="last_good"), str(run), 1)
    assert [one["loaded"] for one in found] == [saved[1][1]] * 2
    assert "step-00000003 is damaged" in found[0]["log"][0]


def test_a_run_that_went_back_over_a_damaged_checkpoint_keeps_its_new_one_and_goes_on_from_it(saved, run):
    flip(step_folder(run, 3) / "__0_0.distcp")
    back = spec(trainer__reduction="canonical", checkpoint__resume="last_good", checkpoint__keep_last=1, checkpoint__every=1)
    shutil.copytree(step_folder(run, 3), step_folder(run, 8))  # a later one, damaged too
    for name in ("meta.json", checkpoints.MARK):
        path = step_folder(run, 8) / name
        path.write_text(path.read_text().replace('"step": 3', '"step": 8'))
    on_ranks(train_and_save, 1, back, str(run), [1])
    assert checkpoints.complete_steps(RunDir(str(run))) == [3]
    assert checkpoint.damage(RunDir(str(run)), 3) is None


def test_what_a_killed_removal_or_save_left_goes_with_the_next_save(saved, run):
    (step_folder(run, 2) / checkpoints.MARK).unlink()
    step_folder(run, 1).mkdir()
    (step_folder(run, 1) / "__0_0.distcp").write_bytes(b"left")
    on_ranks(train_and_save, 1, saved[2], str(run), [1])
    assert checkpoints.steps_on_disk(RunDir(str(run))) == [3, 4]


def damage_all(run: Path) -> None:
    for step in (2, 3):
        flip(step_folder(run, step) / "__0_0.distcp")


def delete_all(run: Path) -> None:
    shutil.rmtree(run / "checkpoints", ignore_errors=True)


def never_complete(run: Path) -> None:
    for step in (2, 3):
        (step_folder(run, step) / checkpoints.MARK).unlink()


@pytest.mark.parametrize(
    "harm, words",
    [
        (damage_all, "every checkpoint is damaged"),
        (delete_all, "there is no complete"),
        (never_complete, "there is no complete"),
    ],
)
def test_a_run_whose_checkpoints_are_gone_never_begins_again_in_silence(saved, run, harm, words):
    harm(run)
    back = spec(trainer__reduction="canonical", checkpoint__resume="last_good")
    for one in on_ranks(load_and_train, 2, back, str(run), 1):
        assert words in one["error"]
        assert "one was completed at step 6" in one["error"]
        assert "the run would begin again at step 0" in one["error"]
    delete_all(run)
    with pytest.raises(StateError, match="no complete checkpoint, and one was completed at step 6"):
        checkpoints.check_kept(RunDir(str(run)))
    (run / "saved.json").unlink()  # as the error says
    checkpoints.check_kept(RunDir(str(run)))
    assert on_ranks(load_and_train, 1, back, str(run), 1)[0]["step"] == 0


def own_folder(meet: Meet, rank: int, some: RunSpec, folders: list[str]) -> dict[str, Any]:
    return load_and_train(meet, rank, some, folders[rank], 1)


def test_ranks_that_see_different_checkpoints_take_the_newest_common_one(saved, run, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(run, other)
    shutil.rmtree(step_folder(other, 3))
    found = on_ranks(own_folder, 2, saved[2], [str(run), str(other)])
    assert [one["step"] for one in found] == [2, 2]
    assert "step-00000003 is not the same on every rank" in found[0]["log"][0]


def test_another_model_is_refused_with_the_names_of_what_differs(saved, run):
    (found,) = on_ranks(load_and_train, 1, spec(model__layers=1), str(run), 1)
    assert "surplus ['model.layers.1." in found["error"]
    (found,) = on_ranks(load_and_train, 1, spec(model__hidden_dim=64), str(run), 1)
    assert "other shapes ['model.layers.0.feed_forward.down.weight" in found["error"]


def test_another_data_stream_is_refused_with_both_values(saved, run):
    (found,) = on_ranks(load_and_train, 1, spec(data__seed=9), str(run), 1)
    assert "data.seed was 0 when this checkpoint was made and is 9 now" in found["error"]


def test_the_last_k_and_every_nth_checkpoint_are_kept(tmp_path):
    some = spec(checkpoint__keep_last=2, checkpoint__keep_every=3, trainer__steps=8)
    on_ranks(train_and_save, 1, some, str(tmp_path), [1] * 7)
    assert checkpoints.steps_on_disk(RunDir(str(tmp_path))) == [3, 6, 7]


def failing_save(meet: Meet, rank: int, some: RunSpec, folder: str) -> str:
    """Rank 1 cannot write: the folder's name is taken by a file that appears between the parts of the save."""
    membership = meet()
    session = build(job(some, folder), membership)
    some_steps(session, 1)
    if rank == 1:
        checkpoint.own_files = _no_room
    try:
        session.save()
        session.settle()
        return "saved"
    except SaveFailed as error:
        return str(error)
    finally:
        session.close()
        membership.leave()


def _no_room(*_: Any) -> Any:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("background", [True, False])
def test_an_error_of_one_rank_in_a_save_ends_the_save_on_all_ranks_and_leaves_nothing_loadable(tmp_path, background):
    found = on_ranks(failing_save, 2, spec(checkpoint__background=background), str(tmp_path), timeout=30)
    for text in found:
        assert "rank 1: OSError(28, 'No space left on device')" in text
    assert checkpoints.complete_steps(RunDir(str(tmp_path))) == []


def test_the_marker_lists_every_file_with_its_size(saved):
    mark = json.loads((step_folder(saved[0], 2) / checkpoints.MARK).read_text())
    on_disk = {path.name: path.stat().st_size for path in step_folder(saved[0], 2).iterdir() if path.name != checkpoints.MARK}
    assert {name: one["size"] for name, one in mark["files"].items()} == on_disk
    assert set(on_disk) == {".metadata", "meta.json", "__0_0.distcp"}


def slow_save(meet: Meet, rank: int, some: RunSpec, folder: str) -> None:
    """Saves step 1; then step 2 in the background with a writer that takes its time, until killed."""
    session = build(job(some, folder), meet())
    some_steps(session, 1)
    session.save()
    session.saver.wait()
    some_steps(session, 1)
    write = checkpoint.own_files

    def slowly(*args: Any) -> Any:
        Path(folder, "saving").touch()
        time.sleep(60)
        return write(*args)

    checkpoint.own_files = slowly
    session.save()
    time.sleep(60)


def test_a_kill_in_a_background_save_leaves_the_checkpoint_before_even_when_one_is_kept(tmp_path):
    some = spec(checkpoint__background=True, checkpoint__keep_last=1)
    with Ranks(slow_save, 2, some, str(tmp_path)) as ranks:
        until = time.monotonic() + 60
        while not (tmp_path / "saving").exists():
            assert time.monotonic() < until
            time.sleep(0.01)
        ranks.kill(0)
        ranks.kill(1)
    assert checkpoints.steps_on_disk(RunDir(str(tmp_path))) == [1, 2]
    found = on_ranks(load_and_train, 1, some, str(tmp_path), 1)
    assert found[0]["step"] == 1
    assert found[0]["log"][0] == "checkpoint step-00000002 was never completed: skipped"


def many_saves(meet: Meet, rank: int, some: RunSpec, folder: str, count: int) -> list[int]:
    """Resident bytes after each of many saves in the background."""
    session = build(job(some, folder), meet())
    found = []
    for _ in range(count):
        some_steps(session, 1)
        session.save()
        session.saver.wait()
        found.append(psutil.Process().memory_info().rss)
    session.close()
    return found


@pytest.mark.slow
def test_memory_stays_flat_over_background_saves(tmp_path):
    wide = spec(model__dim=256, model__layers=4, checkpoint__background=True, checkpoint__keep_last=1, trainer__steps=20)
    (found,) = on_ranks(many_saves, 1, wide, str(tmp_path), 20)
    assert found[-1] < 1.05 * found[4]


@pytest.mark.parametrize("background", [True, False])
def test_a_disk_that_is_full_is_reported_on_every_rank_and_the_checkpoint_before_is_used(tmp_path, background):
    some = spec(checkpoint__background=background)
    on_ranks(train_and_save, 2, some, str(tmp_path), [1])
    found = on_ranks(save_with_little_room, 2, some, str(tmp_path), timeout=30)
    assert all("could not be written" in text and "File too large" in text for text in found)
    (again,) = on_ranks(load_and_train, 1, some, str(tmp_path), 1)
    assert again["step"] == 1


def save_with_little_room(meet: Meet, rank: int, some: RunSpec, folder: str) -> str:
    """The kernel refuses rank 1 files of more than 20 kB."""
    session = build(job(some, folder), meet())
    some_steps(session, 1)
    if rank == 1:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
    try:
        session.save()
        session.settle()
        return "saved"
    except SaveFailed as error:
        return str(error)


@pytest.mark.slow
def test_a_tensor_parallel_checkpoint_loads_without_tensor_parallelism(tmp_path):
    hashes = on_ranks(train_and_save, 4, spec(trainer__parallel="fsdp", trainer__tensor_parallel=2), str(tmp_path), [2])
    (found,) = on_ranks(load_and_train, 1, spec(), str(tmp_path), 1)
    assert found["loaded"] == hashes[0][0]


def test_a_resumed_sharded_run_ends_in_the_bits_of_the_unbroken_one_at_the_same_size(tmp_path):
    some = spec(trainer__parallel="fsdp")
    hashes = on_ranks(train_and_save, 2, some, str(tmp_path), [3, 3])
    shutil.rmtree(step_folder(tmp_path, 6))
    found = on_ranks(load_and_train, 2, some, str(tmp_path), 3)
    assert [one["end"] for one in found] == [hashes[0][1]] * 2
