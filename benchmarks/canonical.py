"""What canonical reduction costs between ranks, and how far apart sizes end with and without it.

    python -m benchmarks.canonical [--quick]

Every size trains the same global batches three ways, by turns in the same processes: canonical; default with the same rows
in a forward, so that only the reduction differs; and default with all rows of a rank in one forward, which canonical cannot
have. Ratios are medians over steps of the slowest rank's time. One thread a rank, gloo, all ranks on this machine.
"""

from __future__ import annotations

import argparse
import dataclasses
import multiprocessing
import os
import statistics
import tempfile
import time
from multiprocessing.connection import Connection

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table

from zephon.run.directory import RunDir
from zephon.spec.experiment import RunSpec
from zephon.train import distributed
from zephon.train.feed import job_for
from zephon.train.session import Session, build

ROWS, BLOCK, WARM_UP = 16, 2, 2
WAYS = {"canonical": ("canonical", BLOCK), "same forwards": ("default", BLOCK), "one forward": ("default", ROWS)}
TIMEOUT_S = 900.0


def spec(way: str, *, steps: int, quick: bool) -> RunSpec:
    """5 M parameters on rows of 128 tokens; ``quick``: 1 M on rows of 64."""
    reduction, microbatch = WAYS[way]
    return RunSpec.from_dict(
        {
            "name": "canonical",
            "global_batch_size": ROWS,
            "data": {"datasets": {"docs": {"path": "stdlib://docs"}}},
            "tokenizer": {"id": "bytes"},
            "pipeline": {"context_length": 64 if quick else 128},
            "lanes": {"count": ROWS // BLOCK},
            "loader": {"runner": "inline"},
            "model": {"dim": 128, "layers": 5, "heads": 4} if quick else {"dim": 256, "layers": 6, "heads": 4},
            "trainer": {
                "steps": steps,
                "microbatch_size": microbatch,
                "reduction": reduction,
                "device": "cpu",
                "tensorboard": False,
            },
        }
    )


@dataclasses.dataclass(frozen=True)
class Taken:
    """Of one way at one size, by step: seconds and processor seconds of this rank's update, and the loss."""

    wall: list[float]
    cpu: list[float]
    losses: list[float]


def rank_main(rank: int, size: int, folder: str, steps: int, quick: bool, answer: Connection) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store-{size}", size)
    membership = distributed.join(distributed.ProcessInfo(rank=rank, size=size), device=torch.device("cpu"), store=store)
    sessions: dict[str, Session] = {}
    for way in WAYS:
        run = RunDir(f"{folder}/{size}-{way.replace(' ', '-')}")
        job = job_for(spec(way, steps=steps, quick=quick), run, membership, log=lambda _: None, fence=lambda: None)
        sessions[way] = build(job, membership)
    sources = {way: session.steps(leaving=lambda: False) for way, session in sessions.items()}
    taken = {way: Taken([], [], []) for way in WAYS}
    for _ in range(steps):
        for way, session in sessions.items():
            step = next(sources[way])
            membership.exchange(None)  # begin together, so that a rank that comes late does not count
            wall, cpu = time.perf_counter(), time.process_time()
            update = session.update(step)
            taken[way].wall.append(time.perf_counter() - wall)
            taken[way].cpu.append(time.process_time() - cpu)
            taken[way].losses.append(update.loss)
    for session in sessions.values():
        session.close()
    membership.leave()
    answer.send(taken)


def at(size: int, *, steps: int, quick: bool) -> list[dict[str, Taken]]:
    """What each rank took at one size."""
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="zephon-bench-") as folder:
        pipes = [spawn.Pipe(duplex=False) for _ in range(size)]
        ranks = [
            spawn.Process(target=rank_main, args=(rank, size, folder, steps, quick, write), daemon=True)
            for rank, (_, write) in enumerate(pipes)
        ]
        try:
            for process in ranks:
                process.start()
            for _, write in pipes:
                write.close()  # so that a rank that dies is seen, and not waited for
            if not all(read.poll(TIMEOUT_S) for read, _ in pipes):
                raise TimeoutError(f"{size} ranks took longer than {TIMEOUT_S:.0f} s")
            return [read.recv() for read, _ in pipes]
        finally:
            for process in ranks:
                process.kill()
                process.join()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.canonical", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smaller model and fewer steps")
    quick = parser.parse_args().quick
    os.environ["OMP_NUM_THREADS"] = "1"
    steps = 6 if quick else 12
    table = Table(
        "ranks", "step, default", "canonical: time", "processor", "against one forward", "default, loss apart", "bits"
    )
    alone: dict[str, Taken] = {}
    for size in (1, 2, 4):
        ranks = at(size, steps=steps, quick=quick)
        alone = alone or ranks[0]
        wall = {way: _slowest([rank[way].wall for rank in ranks]) for way in WAYS}
        cpu = {way: _slowest([rank[way].cpu for rank in ranks]) for way in WAYS}
        apart = max(map(_relative, ranks[0]["same forwards"].losses, alone["same forwards"].losses))
        table.add_row(
            str(size),
            f"{statistics.median(wall['same forwards']):.2f} s",
            f"{_ratio(wall['canonical'], wall['same forwards']):.2f}",
            f"{_ratio(cpu['canonical'], cpu['same forwards']):.2f}",
            f"{_ratio(wall['canonical'], wall['one forward']):.2f}",
            f"{apart:.0e}",
            "equal" if ranks[0]["canonical"].losses == alone["canonical"].losses else "OTHER",
        )
    Console().print(table)


def _slowest(of_ranks: list[list[float]]) -> list[float]:
    return [max(step) for step in zip(*of_ranks, strict=True)][WARM_UP:]


def _ratio(times: list[float], baseline: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(times, baseline, strict=True))


def _relative(loss: float, reference: float) -> float:
    return abs(loss - reference) / abs(reference)


if __name__ == "__main__":
    main()
