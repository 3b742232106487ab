"""``trainer=torchtitan`` in pods of real nodes: TorchTitan trains there, is resized, stopped and resumed."""

from __future__ import annotations

import copy
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torchtitan", reason="TorchTitan is not installed here: make test-torchtitan")

from tests.kubernetes.machines import TRAINS_S, Machines, ended, host_overlay, reach, start
from tests.kubernetes.test_story import unbroken
from tests.torchtitan.test_launcher import SITE, experiment
from zephon.launch import control
from zephon.launch import start as launcher
from zephon.run.checkpoints import read_meta
from zephon.run.ledger import read_ledger

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow, pytest.mark.timeout(1500)]
STEPS = 60


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    """Two real nodes, whose pods run this checkout in this environment."""
    found = start(tmp_path_factory.mktemp("machines"), nodes=2, life_s=1500)
    with ended(found):
        yield found


def overlay() -> dict[str, Any]:
    """The host's Python as in all tests on real nodes, with what TorchTitan lacks without an accelerator, and its memory."""
    changed = copy.deepcopy(host_overlay())
    (container,) = changed["pods"]["spec"]["containers"]
    (path,) = (entry for entry in container["env"] if entry["name"] == "PYTHONPATH")
    path["value"] = os.pathsep.join([str(SITE), path["value"]])
    (small,) = changed["nodes"]["spec"]["containers"]
    small["resources"]["limits"]["memory"] = "4Gi"
    return changed


def test_pods_train_with_torchtitan_through_a_resize_a_stop_and_a_resume(machines: Machines, folder: Path) -> None:
    name = machines.name("titan")
    texts = machines.runs / "texts"
    shutil.copytree(folder, texts, ignore=shutil.ignore_patterns("seed*"))  # where the pods see it
    texts.chmod(0o755)  # the pods are not root
    conf = experiment(texts, trainer={"steps": STEPS, "microbatch_size": 2, "process_group_timeout_s": 120})
    nobody = {"USER": "zephon", "HOME": "/tmp"}  # libraries ask for both, and a pod's user has neither
    spec = machines.spec(name, f"conf={conf}", "nodes=2", "elastic.drain_s=30", worker_env=nobody, overlay=overlay())
    rundir = machines.submit(spec)
    reach(rundir, "training on two nodes", lambda now: now.world_size == 2 and now.step >= 3, 3 * TRAINS_S)
    settled = control.rescale(rundir, 1, wait_s=3 * TRAINS_S)
    assert settled.world_size == 1
    reach(rundir, "training on one node", lambda now: now.world_size == 1 and now.step > settled.step, 2 * TRAINS_S)
    stopped = control.stop(rundir, wait_s=TRAINS_S)
    assert stopped.state == "STOPPED"
    assert 3 <= stopped.step < STEPS
    machines.opened(rundir)
    launcher.resume(rundir)
    machines.opened(rundir)
    done = reach(rundir, "the last step", lambda now: now.state == "DONE", 3 * TRAINS_S)
    assert done.step == STEPS
    entries = list(read_ledger(rundir.path("ledger.jsonl")))
    assert [entry.step for entry in entries] == list(range(STEPS)), "a step was lost or trained twice"
    assert {entry.rest["world_size"] for entry in entries} == {1, 2}
    assert [entry.digest for entry in entries] == unbroken(rundir, STEPS)
    assert read_meta(rundir, STEPS).tokens == sum(sum(entry.rest["tokens"].values()) for entry in entries)
