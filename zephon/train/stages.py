"""The trainer's part in a run's stages: calibration before the first step, evaluation of the last checkpoint.

Both run in one process without nodes, and write into the run directory what they return.
"""

from __future__ import annotations

from dataclasses import asdict, replace

import torch

from zephon.ops.tokenizers import load_tokenizer
from zephon.pipeline.experiment import pipeline
from zephon.run.calibration import read_calibration, write_calibration
from zephon.run.directory import RunDir
from zephon.run.evaluation import HeldOutLoss, write_evaluation
from zephon.spec.experiment import RunSpec
from zephon.train import reduction
from zephon.train.distributed import ProcessInfo, choose_device, join
from zephon.train.evaluation import Evaluation
from zephon.train.feed import job_for
from zephon.train.session import build
from zephon.types import Json


def calibrate(run: RunDir, spec: RunSpec) -> dict[str, float]:
    """Measures tokens per byte of each dataset and writes ``calibration.json``, which every worker then reads.

    A run is measured once: what was measured stays as it is, since the mixture of later steps follows from it. A dataset that
    joins a run later is added.
    """
    before = read_calibration(run)
    tokenizer = load_tokenizer(spec.tokenizer.id, backend=spec.tokenizer.backend)
    counts = {**(before or {}), **pipeline(spec, tokenizer, dp_rank=0, dp_size=1).calibrate(before)}
    if counts != before:
        write_calibration(run, counts)
    return {name: sampled.tokens / sampled.size for name, sampled in counts.items() if sampled.size}


def evaluate(run: RunDir, spec: RunSpec) -> Json:
    """Loss of the newest checkpoint on ``trainer.eval_data``, as ``evaluation.json``: step, loss per token, tokens.

    Raises:
        ConfigError: no held-out data, or too little of it.
    """
    trainer = replace(spec.trainer, parallel="ddp", tensor_parallel=1, eval_every=spec.trainer.eval_every or 1)
    alone = replace(spec, trainer=trainer)
    device = choose_device(trainer.device, local_rank=0)
    threads = trainer.torch_threads or (1 if trainer.reduction == "canonical" else None)
    if threads is not None:
        torch.set_num_threads(threads)
    if trainer.reduction == "canonical":
        reduction.use_deterministic_kernels(device)
    membership = join(ProcessInfo(), device=device, timeout_s=trainer.process_group_timeout_s)
    try:
        session = build(job_for(alone, run, membership, log=print, fence=lambda: None), membership)
        try:
            held_out = Evaluation(session)()
            assert held_out is not None  # nobody asks a stage's ranks to leave together
            losses = {name: loss.mean for name, loss in held_out.datasets.items()}
            result = HeldOutLoss(step=session.step, loss=held_out.loss, tokens=held_out.tokens, by_dataset=losses)
        finally:
            session.close()
    finally:
        membership.leave()
    write_evaluation(run, result)
    return asdict(result)
