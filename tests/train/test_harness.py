"""The export for Hugging Face in the public evaluation harness, where it is installed: the same likelihoods as ours."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch

from tests.train.test_worker import workers, write_run
from zephon.ops.tokenizers import load_tokenizer
from zephon.run.directory import RunDir
from zephon.run.specs import newest_spec
from zephon.train.hf import export
from zephon.train.model import Decoder, assign
from zephon.train.weights import read_weights

pytestmark = pytest.mark.slow


@pytest.mark.filterwarnings("ignore")
def test_the_harness_gives_the_likelihoods_that_our_model_gives(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("lm_eval", reason="the evaluation harness is not installed: pip install lm_eval")
        from lm_eval.api.instance import Instance
        from lm_eval.models.huggingface import HFLM

    write_run(tmp_path / "run", trainer__steps=1, tokenizer__id="gpt2")
    assert workers(tmp_path / "run", 1) == [0]
    run, out = RunDir(str(tmp_path / "run")), export(RunDir(str(tmp_path / "run")), tmp_path / "hf")
    pairs = [("The capital of France is", " Paris"), ("Water is", " wet and cold")]
    requests = [Instance(request_type="loglikelihood", doc={}, arguments=pair, idx=i) for i, pair in enumerate(pairs)]
    model = HFLM(pretrained=str(out), device="cpu", batch_size=1, dtype="float32")
    theirs = [total for total, _ in model.loglikelihood(requests, disable_tqdm=True)]
    _, weights = read_weights(run)
    tokenizer = load_tokenizer("gpt2")
    model_of_ours = Decoder(newest_spec(run).model, len(weights["embed.weight"]))
    for name, parameter in model_of_ours.named_parameters():
        assign(parameter, weights[name])
    ours = []
    for context, continuation in pairs:
        ids = torch.tensor(tokenizer.encode([context + continuation])[0].astype("int64"))
        scores = model_of_ours(ids[None, :-1]).detach().log_softmax(-1)[0]
        begin = len(tokenizer.encode([context])[0])
        ours.append(sum(float(scores[i - 1, ids[i]]) for i in range(begin, len(ids))))
    assert theirs == pytest.approx(ours, rel=1e-4)
