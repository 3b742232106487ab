"""AdamW's state by name."""

from __future__ import annotations

import pytest
import torch

from tests.train.synthetic import VOCAB, spec
from zephon.spec.experiment import OptimizerSpec
from zephon.train import optim
from zephon.train.model import Decoder, initialise


@pytest.fixture
def model() -> Decoder:
    built = Decoder(spec().model, VOCAB)
    initialise(built, seed=0, layers=2)
    for index, parameter in enumerate(built.parameters()):
        parameter.grad = torch.full_like(parameter, 0.1 * (index + 1))
    return built


def test_the_state_prepared_ahead_has_exactly_the_fields_that_adamw_makes(model):
    ours, theirs = optim.adamw(model, OptimizerSpec()), torch.optim.AdamW(model.parameters())
    theirs.step()
    for parameter in model.parameters():
        mine, made = ours.state[parameter], theirs.state[parameter]
        assert set(mine) == set(made) == set(optim.FIELDS)
        assert all((mine[f].shape, mine[f].dtype) == (made[f].shape, made[f].dtype) for f in optim.FIELDS)


def test_a_step_is_adamws_own_with_decay_on_matrices_only(model):
    other = Decoder(spec().model, VOCAB)
    other.load_state_dict(model.state_dict())
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        theirs.grad = mine.grad.clone()
    decayed = [p for p in other.parameters() if p.ndim > 1]
    plain = [p for p in other.parameters() if p.ndim == 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    reference = torch.optim.AdamW(groups, lr=0.5, betas=(0.9, 0.95))
    ours = optim.adamw(model, OptimizerSpec(weight_decay=0.1))
    optim.set_rate(ours, 0.5)
    ours.step()
    reference.step()
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_clipping_brings_the_norm_to_the_limit_and_leaves_smaller_ones(model):
    norm = optim.gradient_norm(model)
    optim.clip(model, norm, float(norm) / 4)
    assert optim.gradient_norm(model).item() == pytest.approx(float(norm) / 4, rel=1e-4)
    before = [p.grad.clone() for p in model.parameters()]
    optim.clip(model, optim.gradient_norm(model), 1e9)
    assert all(torch.equal(a, p.grad) for a, p in zip(before, model.parameters(), strict=True))


def test_reset_zeroes_every_field(model):
    optimizer = optim.adamw(model, OptimizerSpec())
    optimizer.step()
    optim.reset(optimizer)
    assert not any(value.any() for state in optimizer.state.values() for value in state.values())
