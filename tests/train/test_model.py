"""The decoder by itself: masks, positions, start weights."""

from __future__ import annotations

import hashlib
import itertools
import warnings

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from zephon.errors import ConfigError
from zephon.spec.experiment import ModelSpec
from zephon.train import attention
from zephon.train.model import Decoder, initial, initialise


def decoder(**sizes) -> Decoder:
    model = Decoder(ModelSpec(**{"dim": 32, "layers": 2, "heads": 4, "kv_heads": 2, **sizes}), 50)
    initialise(model, seed=3, layers=2)
    with torch.no_grad():
        for parameter in model.parameters():  # far from the gentle start, so that leaks are large
            parameter.mul_(8.0) if parameter.ndim > 1 else None
    return model


def packed(*documents: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.cat(documents)[None], torch.cat([torch.arange(len(d)) for d in documents])[None]


def test_a_document_does_not_see_its_neighbour_in_the_row():
    a, b, c = torch.randint(50, (3, 12), generator=torch.Generator().manual_seed(1))
    model = decoder()
    beside_a, beside_c = model(*packed(a, b))[0, 12:], model(*packed(c, b))[0, 12:]
    assert torch.equal(beside_a, beside_c)
    assert torch.allclose(beside_a, model(b[None], torch.arange(12)[None])[0], atol=1e-4)


def test_without_positions_a_row_is_one_document():
    ids = torch.arange(10)[None]
    model = decoder()
    assert torch.allclose(model(ids), model(ids, torch.arange(10)[None]), atol=1e-4)


def test_a_token_does_not_see_what_comes_after_it():
    model, ids = decoder(), torch.arange(10)[None]
    changed = ids.clone()
    changed[0, 7:] = 1
    assert torch.equal(model(ids, None)[0, :7], model(changed, None)[0, :7])


@pytest.mark.parametrize("tied", [True, False])
def test_recomputing_activations_changes_no_gradient(tied):
    def gradients(recompute):
        model = Decoder(ModelSpec(dim=32, layers=2, tie_embeddings=tied), 50, recompute=recompute)
        initialise(model, seed=3, layers=2)
        ids, positions = packed(torch.arange(9), torch.arange(20, 30))
        model(ids, positions, ids)[0].backward()
        return [p.grad for p in model.parameters()]

    assert all(torch.equal(a, b) for a, b in zip(gradients(False), gradients(True), strict=True))


def test_start_weights_follow_from_seed_and_name_alone():
    shape = torch.Size((4, 6))
    assert torch.equal(initial("a", shape, seed=1, layers=2), initial("a", shape, seed=1, layers=2))
    assert not torch.equal(initial("a", shape, seed=1, layers=2), initial("b", shape, seed=1, layers=2))
    assert not torch.equal(initial("a", shape, seed=1, layers=2), initial("a", shape, seed=2, layers=2))


def test_start_weights_have_the_wanted_spread():
    values = initial("embed.weight", torch.Size((500, 200)), seed=0, layers=2)
    assert abs(float(values.mean())) < 1e-3 * 0.02 * 10
    assert float(values.std()) == pytest.approx(0.02, rel=0.02)
    deep = initial("layers.0.feed_forward.down.weight", torch.Size((500, 200)), seed=0, layers=8)
    assert float(deep.std()) == pytest.approx(0.02 / 4, rel=0.02)


def test_start_weights_are_these_on_every_machine():
    values = initial("layers.0.attention.query.weight", torch.Size((4, 6)), seed=0, layers=2).numpy()
    assert hashlib.sha256(values.tobytes()).hexdigest()[:16] == "5fcb5fbcf90158c6"


@pytest.mark.parametrize("sizes", [{"dim": 30}, {"kv_heads": 3}, {"dim": 12, "heads": 4}])
def test_sizes_that_do_not_fit_together_are_refused(sizes):
    with pytest.raises(ConfigError, match="do not fit together"):
        Decoder(ModelSpec(**{"dim": 32, "layers": 1, "heads": 4, **sizes}), 50)


POSITIONS = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 0, 1, 2, 3, 4, 5, 0, 1, 0], [*range(16)], [*range(5, 16), *range(5)]])


def some_heads() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.randn(3, 4, 16, 8), torch.randn(3, 2, 16, 8), torch.randn(3, 2, 16, 8)


def test_flex_attention_sees_what_the_dense_mask_shows(monkeypatch):
    monkeypatch.setattr(attention, "_compiled_flex", lambda: flex_attention)
    monkeypatch.setattr(attention, "_compiled_mask", lambda: create_block_mask)
    q, k, v = some_heads()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that it is slow without compilation
        found = attention.attention(POSITIONS, kind="flex")(q, k, v)
    torch.testing.assert_close(found, attention.attention(POSITIONS, kind="dense")(q, k, v))


def one_document_at_a_time(q, k, v, begins, begins_k, longest, longest_k, *, window_size, enable_gqa):
    """What the variable-length kernel, which a CPU does not have, computes: tokens [T, heads, D], edges [documents + 1]."""
    assert (window_size, enable_gqa, longest) == ((-1, 0), True, longest_k)
    assert torch.equal(begins, begins_k)
    assert begins.dtype == torch.int32
    assert int(begins.diff().max()) <= longest
    parts = []
    for begin, end in itertools.pairwise(begins.tolist()):
        one = (x[begin:end].transpose(0, 1)[None] for x in (q, k, v))
        parts.append(scaled_dot_product_attention(*one, is_causal=True, enable_gqa=True)[0].transpose(0, 1))
    return torch.cat(parts)


def test_what_the_variable_length_kernel_is_given_is_what_the_dense_mask_shows(monkeypatch):
    monkeypatch.setattr(attention, "_varlen_kernel", lambda: one_document_at_a_time)
    q, k, v = some_heads()
    found = attention.attention(POSITIONS, kind="varlen")(q, k, v)
    torch.testing.assert_close(found, attention.attention(POSITIONS, kind="dense")(q, k, v))


def test_this_pytorch_has_the_variable_length_kernel_and_takes_what_it_is_given():
    """As far as a machine without CUDA can tell: shapes, through the kernel's own description of its result."""
    assert attention.has_varlen()
    with FakeTensorMode(allow_non_fake_inputs=True), torch.device("cuda"):
        q, k, v = (torch.empty(2, heads, 16, 8, dtype=torch.bfloat16) for heads in (4, 2, 2))
        edges = torch.empty(5, dtype=torch.int32)
        flat = [x.transpose(1, 2).flatten(0, 1) for x in (q, k, v)]
        found = attention._varlen_kernel()(*flat, edges, edges, 16, 16, window_size=(-1, 0), enable_gqa=True)
    assert (found.shape, found.dtype, found.device.type) == ((32, 4, 8), torch.bfloat16, "cuda")
