"""A tiny gloo worker that obeys the worker's contract: counts steps, drains on SIGTERM, saves, and tells by exit status.

State is one integer in ``state.json`` below the run directory; ledger and ``toy.jsonl`` (step, world size, generation) get
one line per step. ``ZEPHON_TOY`` holds JSON settings: steps, step_s, and faults by step.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from zephon.run.directory import RunDir
from zephon.run.ledger import Ledger
from zephon.run.progress import Progress, write_progress


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", required=True)
    parser.add_argument("--attempt", type=int, required=True)
    arguments = parser.parse_args()
    asked = []
    toy = json.loads(os.environ.get("ZEPHON_TOY", "{}"))
    signal.signal(signal.SIGTERM, signal.SIG_IGN if toy.get("deaf") else lambda *_: asked.append(1))
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    rundir, rank, generation = RunDir(arguments.run), int(os.environ["RANK"]), int(os.environ["ZEPHON_GENERATION"])
    if toy.get("exit_at_start") is not None:
        return int(toy["exit_at_start"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    if toy.get("settle_s"):
        time.sleep(toy["settle_s"])
    start = rundir.read_json("state.json")["step"] if rundir.exists("state.json") else 0
    ledger = Ledger(rundir.path("ledger.jsonl")) if rank == 0 else None
    begun = {"began": start, "recorded": recorded(rundir)}
    steps = int(toy.get("steps", 20))
    for step in range(start + 1, steps + 1):
        time.sleep(float(toy.get("step_s", 0.05)))
        fault(toy, rundir, step, rank)
        flag = torch.tensor([float(bool(asked)), 1.0])
        dist.all_reduce(flag, op=dist.ReduceOp.SUM)
        if ledger is not None:
            report(ledger, arguments, rundir, step, steps, generation, begun)
        if flag[0] > 0 and toy.get("drain_fault") and rank == int(toy.get("fault_rank", 0)):
            raise RuntimeError("toy fault in the drain")
        if flag[0] > 0 or step % int(toy.get("save_every", 5)) == 0 or step == steps:
            save(rundir, step, rank)
        if flag[0] > 0 and step < steps:
            return 143 if asked else 75
    return 0


def fault(toy: dict, rundir: RunDir, step: int, rank: int) -> None:
    """Faults strike once: at a step, on a rank, in the first generation that gets there."""
    kind = toy.get("faults", {}).get(str(step))
    if kind is None or rank != int(toy.get("fault_rank", 0)):
        return
    try:
        os.close(os.open(rundir.path(f"fault-{step}"), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        if not toy.get("fault_always"):
            return
    if kind == "raise":
        raise RuntimeError(f"toy fault at step {step}")
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "hang":
        time.sleep(10_000)
    if kind == "eat":  # until the kernel ends it
        eaten = []
        while True:
            eaten.append(b"x" * (16 << 20))
    sys.exit(int(kind))


def recorded(rundir: RunDir) -> int:
    if not rundir.exists("toy.jsonl"):
        return 0
    with open(rundir.path("toy.jsonl"), encoding="utf-8") as file:
        return int(json.loads(file.readlines()[-1])["step"])


def report(
    ledger: Ledger, arguments: argparse.Namespace, rundir: RunDir, step: int, steps: int, generation: int, begun: dict
) -> None:
    world = dist.get_world_size()
    line = {"step": step, "world_size": world, "generation": generation, "time": time.time()}
    with open(rundir.path("toy.jsonl"), "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    ledger.append(step=step - 1, digest=step.to_bytes(32, "big"), lanes=[])
    made = {"loss": 1 / step, "tokens_per_s": 1.0, "digest": f"{step:064x}"}
    write_progress(rundir, arguments.attempt, Progress(**line, **begun, **made, steps=steps))


def save(rundir: RunDir, step: int, rank: int) -> None:
    if rank == 0:
        rundir.write_json("state.json", data={"step": step})
        rundir.write_json("checkpoints", f"step-{step:08d}", "COMPLETE", data={})
    dist.barrier()


if __name__ == "__main__":
    status = main()
    settings = json.loads(os.environ.get("ZEPHON_TOY", "{}"))
    if settings.get("linger_rank") == int(os.environ["RANK"]):
        time.sleep(settings["linger_s"])
    if dist.is_initialized():
        dist.destroy_process_group()
    sys.exit(status)
