"""Weights & Biases (offline) and MLflow (in a folder), the real ones; where one is not installed its test is skipped."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import psutil
import pytest

from tests.train.synthetic import spec
from tests.train.test_worker import curve, workers, workers_with_logs, write_run
from zephon.errors import ConfigError
from zephon.run.directory import RunDir
from zephon.train.metrics import sinks
from zephon.train.trackers import RUN_TAG, Scalars


def test_trackers_get_every_number_of_a_step_at_once_by_dotted_name():
    got = []
    scalars = Scalars(lambda numbers, step: got.append((numbers, step)), lambda: None)
    scalars.write(4, {"loss": 1, "digest": "ab", "skipped": None, "seconds": {"data": 0.5}})
    assert got == [({"loss": 1.0, "seconds.data": 0.5}, 4)]


def test_a_service_that_fails_is_reported_once_and_training_goes_on(capsys):
    asked = []

    def put(numbers, step):
        asked.append(step)
        raise ConnectionError("server busy")

    scalars = Scalars(put, lambda: asked.append("end"), service="mlflow")
    for step in range(3):
        scalars.write(step, {"loss": 1.0, "lr": 2.0})
    scalars.close()
    assert asked == [0]
    assert capsys.readouterr().err == "mlflow gets no more metrics: server busy; metrics.jsonl goes on\n"


def test_an_error_of_the_runs_own_files_is_not_passed_over():
    def put(numbers, step):
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        Scalars(put, lambda: None).write(0, {"loss": 1.0})


@pytest.mark.parametrize("tracker", ["wandb", "mlflow"])
def test_a_tracker_that_is_not_installed_is_refused_with_how_to_get_it(tmp_path, tracker, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == tracker else find(name, *rest))
    with pytest.raises(ConfigError, match=f"pip install {tracker}"):
        sinks(RunDir(str(tmp_path)), spec(**{f"trainer__{tracker}": "project"}), 1)


def two_attempts(folder: Path, tracker: str, **env: str) -> list[float]:
    """Trains 3 steps and, as another attempt, 2 more; the losses by step."""
    for attempt, steps in ((1, 3), (2, 5)):
        write_run(folder / "run", attempt, trainer__steps=steps, **{f"trainer__{tracker}": "project"})
        assert workers(folder / "run", 1, attempt=attempt, **env) == [0]
    return [loss for _, loss, _ in curve(folder / "run")]


@pytest.mark.slow
def test_weights_and_biases_gets_every_step_of_every_attempt_and_its_processes_end(tmp_path):
    pytest.importorskip("wandb")
    losses = two_attempts(tmp_path, "wandb", WANDB_MODE="offline", WANDB_DIR=str(tmp_path), WANDB_SILENT="true")
    files = sorted(tmp_path.glob("wandb/offline-run-*-tiny/run-tiny.wandb"))
    assert len(files) == 2
    written = b"".join(file.read_bytes() for file in files)
    assert [loss for loss in losses if repr(loss).encode() not in written] == []
    assert all(name in written for name in (b"grad_norm", b"seconds.data", b"shares.docs", b"global_batch_size"))
    mine = [one for one in psutil.process_iter(["cmdline"]) if "wandb-core" in " ".join(one.info["cmdline"] or [])]
    _, alive = psutil.wait_procs(mine, timeout=30)
    assert alive == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")  # MLflow would rather have a database
def test_mlflow_gets_every_step_of_every_attempt_in_one_run(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    store = {"MLFLOW_TRACKING_URI": f"file:{tmp_path}/store", "MLFLOW_ALLOW_FILE_STORE": "true"}
    losses = two_attempts(tmp_path, "mlflow", **store)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    client = mlflow.MlflowClient(store["MLFLOW_TRACKING_URI"])
    (run,) = client.search_runs([client.get_experiment_by_name("project").experiment_id])
    assert (run.info.run_name, run.info.status, run.data.tags[RUN_TAG]) == ("tiny", "FINISHED", "tiny")
    assert [(one.step, one.value) for one in client.get_metric_history(run.info.run_id, "loss")] == list(enumerate(losses))


def test_a_tracker_that_cannot_begin_ends_every_rank_with_what_to_do(tmp_path):
    pytest.importorskip("mlflow")
    write_run(tmp_path, trainer__mlflow="project")
    (tmp_path / "file").touch()
    env = {"MLFLOW_TRACKING_URI": f"file:{tmp_path}/file/store", "MLFLOW_ALLOW_FILE_STORE": "true"}
    for status, log in workers_with_logs(tmp_path, 2, **env):
        assert status == 65
        assert "trainer.mlflow='project': it cannot begin a run" in log
