"""How long training stands still when the number of nodes changes, and where the time goes; beside stock torchrun.

    python -m benchmarks.rescale [--changes 20] [--torchrun 3]

The stall runs from the end of the last step at the old size to the end of the first step at the new one, of the real trainer
on a laptop-size model. A quarter of the changes each are a node more, a preempted one of two nodes, which is two resizes (it
leaves, and its replacement joins), a node less, and a preempted node that was alone: nobody trains until another has started.
torchrun runs the same worker with the settings under which its scale-up works at all (see docs/launching.md).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from zephon.launch import control
from zephon.launch import start as session
from zephon.launch.backends.local.supervision import read_state
from zephon.launch.config.compose import compose
from zephon.launch.status import status_of
from zephon.run.directory import RunDir
from zephon.run.events import read_events
from zephon.run.progress import read_progress
from zephon.run.specs import write_spec
from zephon.spec.experiment import RunSpec

PARTS = ("drain", "save", "membership", "restore", "first_step")


def laptop_spec(runs: str, name: str) -> RunSpec:
    overrides = ["conf=bytes", f"runs={runs}", f"name={name}", "trainer.steps=1000000", "checkpoint.every=1000", "nodes=1"]
    return compose([*overrides, "pipeline.context_length=64", "trainer.tensorboard=false", "elastic.heartbeat_s=2"]).spec


def ours(runs: str, changes: int) -> list[dict[str, Any]]:
    """The ``resized`` events of a run that is changed ``changes`` times."""
    spec = laptop_spec(runs, "ours")
    rundir = session.start(spec).rundir
    try:
        control.wait_for(rundir, lambda now: now.step >= 3, 120, "to start")
        for number in range(changes):
            kind = ("up", "replaced", "down", "alone")[number % 4]
            if kind in ("replaced", "alone"):
                _replace(rundir)
            else:
                control.rescale(rundir, 2 if kind == "up" else 1, wait_s=120)
            reached = status_of(rundir).step
            control.wait_for(rundir, lambda now, reached=reached: now.step >= reached + 3, 120, "to go on")  # type: ignore[misc]
        return [{**event.details, "kind": _kind(event.details)} for event in read_events(rundir) if event.kind == "resized"]
    finally:
        control.stop(rundir)


def _kind(event: Mapping[str, Any]) -> str:
    if event["nodes"] == event["nodes_before"]:
        return "alone" if event["nodes"] == 1 else "replaced"
    return "up" if event["nodes"] > event["nodes_before"] else "down"


def _replace(rundir: RunDir) -> None:
    state = read_state(rundir, rundir.attempts()[-1])
    assert state is not None
    before, pid = status_of(rundir).generation, next(iter(state.agents.values()))
    assert pid is not None
    os.kill(pid, signal.SIGTERM)
    control.wait_for(rundir, lambda now: now.generation > before and now.state == "TRAINING", 120, "to replace a node")


@contextmanager
def torchrun(rundir: RunDir, port: int, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """One stock agent; ended with its workers."""
    argv = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=1000"]
    argv += ["--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{port}", "--rdzv-id=bench", "--rdzv-conf=last_call_timeout=1"]
    # After "--", because torchrun would read the worker's --run as short for its own --run-path.
    argv += ["-m", "--", "zephon.train", "--run", rundir.url, "--attempt", "1"]
    env = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
    with open(log, "ab") as output:
        process = subprocess.Popen(argv, stdout=output, stderr=output, env=env, start_new_session=True)
    try:
        yield process
    finally:
        for child in psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []:
            child.kill()
        process.kill()
        process.wait(10)


def theirs(runs: str, rounds: int) -> list[float]:
    """Stalls of scale-ups from one torchrun agent to two, seconds."""
    stalls = []
    for number in range(rounds):
        spec = laptop_spec(runs, f"torchrun-{number}")
        rundir = session.rundir_of(spec)
        write_spec(rundir, 1, spec)
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        log = Path(rundir.path("torchrun.log"))
        with torchrun(rundir, port, log):
            _until(lambda rundir=rundir: (now := read_progress(rundir, 1)) is not None and now.step >= 5, 180)  # type: ignore[misc]
            with torchrun(rundir, port, log):
                last = read_progress(rundir, 1)
                deadline = time.monotonic() + 180
                while ((now := read_progress(rundir, 1)) is None or now.world_size != 2) and time.monotonic() < deadline:
                    last = now
                    time.sleep(0.02)
                stalls.append(now.time - last.time if now and last and now.world_size == 2 else float("inf"))
    return stalls


def _until(test: Callable[[], bool], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while not test():
        if time.monotonic() > deadline:
            raise TimeoutError("the benchmark's job made no progress")
        time.sleep(0.05)


def show(resizes: list[dict[str, Any]]) -> None:
    for kind in ("up", "down", "replaced", "alone"):
        events = [event for event in resizes if event["kind"] == kind]
        if events:
            parts = "  ".join(f"{name} {statistics.median(e['parts_s'][name] for e in events):.2f}" for name in PARTS)
            lost = sum(event["lost_steps"] for event in events)
            stall = statistics.median(event["stall_s"] for event in events)
            print(f"{kind:<9} n={len(events):<3} median stall {stall:.2f} s   {parts}   lost {lost} steps")
    print(f"all       n={len(resizes):<3} median stall {statistics.median(event['stall_s'] for event in resizes):.2f} s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--changes", type=int, default=20)
    parser.add_argument("--torchrun", type=int, default=2, help="rounds with stock torchrun; 0 for none")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as runs:
        os.environ["XDG_STATE_HOME"] = f"{runs}/state"
        resizes = ours(runs, arguments.changes)
        show(resizes)
        stock = theirs(runs, arguments.torchrun)
    if stock:
        print(f"torchrun  n={len(stock):<3} median stall {statistics.median(stock):.2f} s (scale-up only)")
    print(json.dumps({"ours": [event["stall_s"] for event in resizes], "torchrun": stock, "load": os.getloadavg()[0]}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
