"""A run directory without space: the run ends, and says why."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.agent.toy import Toy, processes_of
from zephon.launch.backends.local.index import apps
from zephon.run.state import overwrite

Maker = Callable[..., Toy]
LONG = 100_000


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB where the toy's runs are."""
    place = tmp_path / "runs"
    place.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"this user may not mount a small file system: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill_up(path: Path) -> None:
    with open(path, "wb", buffering=0) as file:
        while file.write(b"0" * 4096):
            pass


@pytest.mark.slow
def test_a_full_disk_ends_the_run_as_failed_with_the_reason_and_room_lets_it_go_on(small_disk: Path, toy: Maker) -> None:
    run = toy(nodes=2, steps=LONG, step_s=0.05, save_every=3).start()
    run.wait_step(3)
    fill = small_disk / "fill"
    with pytest.raises(OSError, match="No space left"):
        fill_up(fill)
    status = run.wait_end()
    assert (status.state, status.status) == ("FAILED", 1)
    assert "no space left on device" in f"{status.error} {status.message}".lower()
    run.wait(lambda _: processes_of(apps()[0].app_id) == [])
    fill.unlink()
    run.resume()
    reached = run.wait_step(status.step + 3)
    assert (reached.state, reached.attempt) == ("TRAINING", 2)
    run.end()


def test_last_words_fit_into_the_file_that_is_there_or_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text(json.dumps({"state": "RUNNING", "message": "x" * 100}, indent=2))
    size = path.stat().st_size
    overwrite(str(path), {"state": "FAILED"})
    assert json.loads(path.read_text()) == {"state": "FAILED"}
    assert path.stat().st_size == size
    with pytest.raises(OSError, match="No space left"):
        overwrite(str(path), {"message": "x" * (1 << 20)})
    assert json.loads(path.read_text()) == {"state": "FAILED"}
