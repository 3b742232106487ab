"""The loss in small memory against the plain one."""

from __future__ import annotations

import pytest
import torch

from zephon.train import loss
from zephon.train.loss import head_loss, token_losses


@pytest.mark.parametrize("z_loss", [0.0, 0.3])
@pytest.mark.parametrize("tokens_at_a_time", [1, 4, 100])
def test_loss_and_gradients_equal_those_of_all_logits_at_once(monkeypatch, z_loss, tokens_at_a_time):
    monkeypatch.setitem(loss.CHUNK_ELEMENTS, "cpu", 11 * tokens_at_a_time)
    hidden, weight = torch.randn(2, 7, 5, requires_grad=True), torch.randn(11, 5, requires_grad=True)
    labels = torch.randint(11, (2, 7))
    labels[0, :3] = labels[1, 4] = -100
    plain, plain_entropy = token_losses(hidden @ weight.T, labels, z_loss=z_loss)
    small, small_entropy = head_loss(hidden, weight, labels, z_loss=z_loss)
    torch.testing.assert_close((small, small_entropy), (plain, plain_entropy))
    torch.testing.assert_close(
        torch.autograd.grad(small / 3, (hidden, weight)), torch.autograd.grad(plain / 3, (hidden, weight)), atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("z_loss", [0.0, 0.1])
def test_ignored_labels_have_no_loss_and_no_gradient(z_loss):
    hidden, weight = torch.randn(2, 3, 5, requires_grad=True), torch.randn(7, 5, requires_grad=True)
    minimised, entropy = head_loss(hidden, weight, torch.full((2, 3), -100), z_loss=z_loss)
    assert (minimised.item(), entropy.tolist()) == (0.0, [[0.0] * 3] * 2)
    assert all(not gradient.any() for gradient in torch.autograd.grad(minimised, (hidden, weight)))


def test_z_loss_is_added_to_what_is_minimised_and_not_to_what_is_reported():
    logits, labels = torch.randn(2, 3, 7), torch.tensor([[1, 2, -100], [3, -100, 4]])
    plain, _ = token_losses(logits, labels)
    total, entropy = token_losses(logits, labels, z_loss=0.5)
    drift = sum(float(logits[i, j].logsumexp(0)) ** 2 for i, j in [(0, 0), (0, 1), (1, 0), (1, 2)])
    assert float(entropy.sum()) == float(plain)
    assert float(total) == pytest.approx(float(plain) + 0.5 * drift, rel=1e-5)


def test_without_gradients_only_the_sums_are_made():
    hidden, weight, labels = torch.randn(1, 3, 5), torch.randn(7, 5), torch.tensor([[0, 1, 2]])
    torch.testing.assert_close(head_loss(hidden, weight, labels), token_losses(hidden @ weight.T, labels))
