"""``make check-gpu``: whether this machine's CUDA device trains as the CPU does, and how fast. One table, under four minutes.

    precision    loss and gradients of a small model, float32 and bfloat16, each kind of attention, compiled or not,
                 against the CPU's in float32
    canonical    the same step twice has the same bits; canonical against default reduction
    speed        a 100 M-parameter model on raw text through the loader: tokens/s, MFU, memory, waiting for data

Every line says what was measured, what was allowed, and whether it holds. The exit status is 0 when all lines do.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from zephon.run.directory import RunDir
from zephon.spec.experiment import ModelSpec, RunSpec
from zephon.train import distributed, optim, reduction, usage
from zephon.train.attention import has_varlen
from zephon.train.feed import job_for
from zephon.train.model import Decoder, initialise, parameter_count
from zephon.train.session import Session, build
from zephon.train.step import TokenRows

SMALL = ModelSpec(dim=128, layers=3, heads=4, kv_heads=2)
VOCABULARY, ROWS, LENGTH = 1000, 4, 256
SPEED_SECONDS = 25.0


@dataclass(frozen=True, kw_only=True)
class Line:
    """One row of the table; ``good`` is None where there is nothing to hold."""

    name: str
    found: str
    allowed: str = ""
    good: bool | None = None


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.check_gpu", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="cpu runs the same script without a device")
    parser.add_argument("--seconds", type=float, default=SPEED_SECONDS, help="how long to measure speed")
    parser.add_argument("--small", action="store_true", help="measure speed with the small model")
    chosen = parser.parse_args()
    if chosen.device == "cuda" and not torch.cuda.is_available():
        print("no CUDA device is visible: nothing was checked")
        return 1
    device = torch.device(chosen.device, 0) if chosen.device == "cuda" else torch.device("cpu")
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}", flush=True)
    good = True
    for line in lines(device, seconds=chosen.seconds, small=chosen.small):
        verdict = {True: "ok", False: "NOT OK", None: ""}[line.good]
        print(f"{line.name:<44} {line.found:>28}   {line.allowed:<24} {verdict}", flush=True)
        good = good and line.good is not False
    return 0 if good else 1


def lines(device: torch.device, *, seconds: float, small: bool) -> Iterator[Line]:
    """All rows, as they are measured."""
    yield from precision(device)
    membership = distributed.join(distributed.ProcessInfo(), device=device)
    try:
        yield from canonical(device, membership)
        yield from speed(device, membership, seconds=seconds, small=small)
    finally:
        membership.leave()


def precision(device: torch.device) -> Iterator[Line]:
    """Every precision and attention path against the CPU in float32."""
    torch.backends.cuda.matmul.allow_tf32 = False
    rows = some_rows()
    reference = gradient(torch.device("cpu"), rows)
    kinds = ["dense", "flex", *(["varlen"] if has_varlen() else [])] if device.type == "cuda" else ["dense"]
    for attend in kinds:
        for low in (False, True) if attend != "varlen" else (True,):  # its kernel takes half precision only
            for compiled in (False, True) if device.type == "cuda" else (False,):  # minutes of C++ on a CPU
                allowed = 3e-2 if low else 1e-4
                name = f"{'bfloat16' if low else 'float32'}, {attend}{', compiled' if compiled else ''}"
                began = time.perf_counter()
                try:
                    measured = gradient(device, rows, attend=attend, low=low, compiled=compiled)
                except Exception as error:  # noqa: BLE001 - a path that breaks is a row of the table, not the end of it
                    yield Line(name=name, found=f"{type(error).__name__}: {error}"[:60], good=False)
                    continue
                gap = relative(measured, reference)
                took = time.perf_counter() - began
                yield Line(
                    name=name, found=f"off by {gap:.1e}, {took:.1f} s", allowed=f"at most {allowed:.0e}", good=gap <= allowed
                )


def gradient(
    device: torch.device, rows: TokenRows, *, attend: str = "dense", low: bool = False, compiled: bool = False
) -> Tensor:
    """The small model's loss and gradient, as one float32 vector on the CPU."""
    model = Decoder(SMALL, VOCABULARY, attend=attend)
    initialise(model, seed=0, layers=SMALL.layers)
    model = model.to(device)
    if compiled:
        for block in model.blocks():
            block.compile()
    there = rows.to(device)
    with torch.autocast(device.type, torch.bfloat16, enabled=low):
        minimised, entropies = model(there.input_ids, there.positions, there.labels)
    (minimised / rows.tokens).backward()
    parts = [entropies.sum().reshape(1) / rows.tokens]
    parts += [p.grad.reshape(-1) for p in model.parameters() if p.grad is not None]
    return torch.cat(parts).float().cpu()


def canonical(device: torch.device, membership: distributed.Membership) -> Iterator[Line]:
    """Bits that must repeat, and the distance between the two reductions."""
    reduction.use_deterministic_kernels(device)
    model = Decoder(SMALL, VOCABULARY, attend="dense")
    initialise(model, seed=0, layers=SMALL.layers)
    model = model.to(device)
    rows = some_rows().to(device)

    def sums(part: TokenRows) -> tuple[Tensor, Tensor]:
        minimised, entropies = model(part.input_ids, part.positions, part.labels)
        return minimised, entropies.sum()

    def collect(reduce: Callable[..., Tensor], **options: int) -> Tensor:
        model.zero_grad(set_to_none=True)
        loss = reduce(model, sums, rows, tokens=rows.tokens, membership=membership, **options) / rows.tokens
        return torch.cat([loss.float(), *(p.grad.reshape(-1) for p in model.parameters() if p.grad is not None)])

    first, second = (collect(reduction.canonical_gradients, block=1) for _ in range(2))
    halves = collect(reduction.default_gradients, microbatch=2)
    same = torch.equal(first, second)
    yield Line(name="canonical step, repeated", found="same bits" if same else "other bits", allowed="same bits", good=same)
    gap = relative(first, halves)
    yield Line(name="canonical against default reduction", found=f"off by {gap:.1e}", allowed="at most 1e-04", good=gap <= 1e-4)
    torch.use_deterministic_algorithms(False)
    kept = optim.adamw(model, RunSpecs.small.optimizer)
    yield Line(name="optimizer kernels", found="fused" if kept.param_groups[0].get("fused") else "plain")


def speed(device: torch.device, membership: distributed.Membership, *, seconds: float, small: bool) -> Iterator[Line]:
    """Trains on raw text for a while and reports its speed."""
    spec = RunSpecs.small if small else RunSpecs.large
    if device.type == "cpu":
        spec = replace(spec, trainer=replace(spec.trainer, device="cpu"))
    with tempfile.TemporaryDirectory() as folder:
        job = job_for(spec, RunDir(folder), membership, log=lambda _: None, fence=lambda: None)
        session = build(job, membership)
        try:
            measured = _train_for(session, seconds)
        finally:
            session.close()
    size = parameter_count(session.module)
    yield Line(name="parameters", found=f"{size / 1e6:.0f} M")
    yield Line(name="tokens/s", found=f"{measured['tokens_per_s']:,.0f} ({measured['steps']} steps)")
    if session.peak is not None:
        mfu = measured["tokens_per_s"] * session.operations / session.peak
        yield Line(name="MFU", found=f"{100 * mfu:.1f} % of {session.peak / 1e12:.0f} TFLOP/s")
    waited = 100 * measured["data"] / measured["seconds"]
    yield Line(name="waiting for data", found=f"{waited:.2f} % of the time", allowed="at most 3 %", good=waited <= 3.0)
    kept = {name: f"{value / 2**30:.2f} GiB" for name, value in usage.memory(device).items()}
    yield Line(name="memory", found=", ".join(f"{name} {value}" for name, value in kept.items()))


def _train_for(session: Session, seconds: float) -> dict[str, Any]:
    """Warms up for three steps, then measures."""
    began, tokens, steps = time.perf_counter(), 0, 0
    for step in session.steps(leaving=lambda: False):
        session.update(step)  # reads the loss, so the device is done when it returns
        steps += 1
        if steps == 3:
            session.clock.lap()
            began, tokens = time.perf_counter(), 0
        else:
            tokens += step.tokens
        if steps > 4 and time.perf_counter() - began > seconds:
            break
    total, phases = session.clock.lap()
    return {"seconds": total, "steps": steps - 3, "tokens_per_s": tokens / total, "data": phases["data"]}


def some_rows() -> TokenRows:
    """The same rows everywhere: documents of 50 tokens, some labels masked."""
    ids = torch.arange(ROWS * LENGTH).view(ROWS, LENGTH) * 7919 % VOCABULARY
    labels = ids.roll(-1, dims=1)
    labels[:, ::11] = -100
    return TokenRows(input_ids=ids, labels=labels, positions=(torch.arange(LENGTH) % 50).repeat(ROWS, 1))


def relative(vector: Tensor, reference: Tensor) -> float:
    return float((vector - reference).norm() / reference.norm())


class RunSpecs:
    """The experiments whose speed is measured: 2 k tokens a row, and 256 for the small one."""

    large = RunSpec.from_dict(
        {
            "name": "check",
            "global_batch_size": 64,
            "data": {"datasets": {"code": {"path": "stdlib://code"}, "docs": {"path": "stdlib://docs"}}},
            "tokenizer": {"id": "gpt2"},
            "pipeline": {"context_length": 1024},
            "model": {"dim": 640, "layers": 14, "heads": 10},
            "trainer": {"steps": 10**6, "microbatch_size": 32, "precision": "bfloat16", "tensorboard": False},
        }
    )
    small = replace(
        large,
        global_batch_size=8,
        tokenizer=replace(large.tokenizer, id="bytes"),
        pipeline=replace(large.pipeline, context_length=256),
        model=SMALL,
        trainer=replace(large.trainer, microbatch_size=4, precision="float32"),
    )


if __name__ == "__main__":
    sys.exit(main())
