from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.integrations.recipes import SEQ, build, global_batches, rows
from zephon.errors import ConfigError, StateError
from zephon.integrations.torchtitan import ZephonDataLoader
from zephon.run.ledger import step_digest


def test_it_yields_inputs_positions_and_labels_of_the_training_length() -> None:
    inputs, labels = next(iter(build()))
    assert inputs["input"].shape == inputs["positions"].shape == labels.shape == (2, SEQ)
    assert {inputs["input"].dtype, inputs["positions"].dtype, labels.dtype} == {torch.int64}
    assert inputs["positions"][:, 0].eq(0).all()


def test_labels_are_the_next_inputs_and_never_the_next_document_unless_asked() -> None:
    (inputs, labels), (_, crossing) = next(iter(build(local=16))), next(iter(build(local=16, labels_cross_documents=True)))
    begins = inputs["positions"][:, 1:].eq(0)
    assert begins.any()
    assert torch.equal(labels[:, :-1].eq(-100), begins)
    assert torch.equal(inputs["input"][:, 1:], crossing[:, :-1])


@pytest.mark.parametrize(("replicas", "local"), [(1, 1), (1, 16), (2, 8), (2, 4), (4, 4), (4, 1), (8, 2), (8, 1)])
def test_every_degree_and_local_batch_size_has_the_same_global_batches(replicas: int, local: int) -> None:
    expected = global_batches([build()], 6)
    loaders = [build(replicas, rank, local=local) for rank in range(replicas)]
    assert global_batches(loaders, 6, local=local) == expected


@pytest.mark.parametrize("replicas", [8, 4, 2, 1])
def test_forwards_cross_lanes(replicas: int) -> None:
    numbers = {"lanes": 32, "global_batch_size": 64}
    loaders = [build(replicas, rank, local=8, **numbers) for rank in range(replicas)]
    assert global_batches(loaders, 2, local=8, size=64) == global_batches([build(local=64, **numbers)], 2, local=64, size=64)


def test_a_chain_of_degrees_goes_on_with_the_same_global_batches_through_merged_states() -> None:
    expected = global_batches([build()], 12)
    got, state = [], {}
    for replicas in (2, 1, 4, 8):
        loaders = [build(replicas, rank, local=2) for rank in range(replicas)]
        for loader in loaders:
            loader.load_state_dict(state)
        got += global_batches(loaders, 3)
        state = {key: value for loader in loaders for key, value in loader.state_dict().items()}
        for loader in loaders:
            loader.close()
    assert got == expected


def test_a_state_from_inside_a_step_gives_that_step_again_whole() -> None:
    expected = global_batches([build()], 3)
    loader = build(local=4)
    batches = iter(loader)
    for _ in range(4 + 3):  # a whole step and three quarters of the next
        next(batches)
    resumed = build()
    resumed.load_state_dict(loader.state_dict())
    assert global_batches([resumed], 2) == expected[1:]
    assert global_batches([loader], 1, local=4) == [expected[1]]  # the loader itself, taken up again


def test_a_fresh_loader_tells_its_state_without_reading_and_takes_an_empty_one() -> None:
    loader = build(2, 1)
    state = loader.state_dict()
    assert [key for key in state if key.startswith("lane.")] == [f"lane.{i}" for i in range(4, 8)]
    assert sum(len(value) for key, value in state.items() if key.startswith("lane.")) < 4 * 128
    loader.load_state_dict({})
    assert loader.state_dict() == state


@pytest.mark.parametrize("replicas", [2, 4, 8])
@pytest.mark.filterwarnings("ignore:.*other ranks.*")
def test_a_finite_stream_ends_at_the_same_step_on_every_rank_and_at_every_degree(replicas: int) -> None:
    (alone,) = [sum(1 for _ in build(local=16, infinite=False))]
    ends = [sum(1 for _ in build(replicas, rank, local=16 // replicas, infinite=False)) for rank in range(replicas)]
    assert ends == [alone] * replicas
    assert alone > 5


@pytest.mark.parametrize("replicas", [2, 8])
def test_held_out_rows_are_the_same_at_every_degree_and_none_is_left_out(replicas: int) -> None:
    config = {"infinite": False, "held_out": True}
    expected = rows(list(build(**config)))
    by_rank = [list(build(replicas, rank, **config)) for rank in range(replicas)]
    assert len({len(batches) for batches in by_rank}) == 1  # or a collective would wait for ever
    assert sorted(row for batches in by_rank for row in rows(batches)) == sorted(expected)
    assert len(expected) > len(rows(list(build(infinite=False))))


def test_held_out_text_without_a_token_to_predict_is_refused_on_every_rank() -> None:
    for rank in range(2):
        with pytest.raises(ConfigError, match="no token to predict"):
            build(2, rank, recipe="nothing_to_predict", infinite=False, held_out=True)


def test_digests_are_those_of_a_run_of_the_pipeline_itself() -> None:
    from tests.integrations.recipes import shuffled
    from zephon.run.ledger import sequence_digest

    own = shuffled(SEQ, True).options(lanes=8, global_batch_size=16).batch(2)
    loaders = [build(2, rank) for rank in range(2)]
    iterators = [iter(loader) for loader in loaders]
    for microbatches in (step for step, _ in zip(own.steps(), range(4), strict=False)):
        expected = [sequence_digest(row) for batch in microbatches for row in batch.fields["input_ids"]]
        for one in iterators:
            for _ in range(4):
                next(one)
        digests = {slot: digest for loader in loaders for slot, digest in loader.delivered.digests.items()}
        assert step_digest([digests[slot] for slot in range(16)], 8) == step_digest(expected, 8)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"recipe": "another_seed"}, "seed"),
        ({"recipe": "packed"}, "shuffle"),
        ({"seq_len": 32}, "max_length"),
        ({"global_batch_size": 32, "local": 2}, "global_batch_size"),
        ({"lanes": 4}, "lanes"),
    ],
)
def test_what_changes_the_data_is_refused_by_name_at_loading(changed: dict[str, Any], says: str) -> None:
    state = build().state_dict()
    with pytest.raises(StateError, match=says):
        build(**changed).load_state_dict(state)


def test_data_that_torchtitan_names_is_refused_since_the_recipe_names_it() -> None:
    config = ZephonDataLoader.Config(recipe="tests.integrations.recipes:packed", lanes=8, global_batch_size=16)
    if not hasattr(config, "dataset"):
        pytest.skip("TorchTitan is not installed: its Config has no field of this name")
    with pytest.raises(ConfigError, match="c4"):
        dataclasses.replace(config, dataset="c4").build(dp_world_size=1, dp_rank=0, seq_len=16, local_batch_size=2)


def test_torchtitans_tokenizer_is_read_from_its_assets(tmp_path: Path) -> None:
    class Theirs:
        tokenizer_path = str(tmp_path)

    config = ZephonDataLoader.Config(recipe="tests.integrations.recipes:packed", lanes=8, global_batch_size=16)
    with pytest.raises(ConfigError, match=r"no tokenizer\.json"):
        config.build(dp_world_size=1, dp_rank=0, tokenizer=Theirs(), seq_len=16, local_batch_size=2)


def test_batches_counted_in_tokens_are_flat() -> None:
    config = ZephonDataLoader.Config(recipe="tests.integrations.recipes:packed", lanes=8, global_batch_size=16)
    loader = config.build(dp_world_size=1, dp_rank=0, tokenizer=None, num_tokens_per_batch=4 * SEQ, max_context_length=SEQ)
    inputs, labels = next(iter(loader))
    assert inputs["input"].shape == inputs["positions"].shape == labels.shape == (4 * SEQ,)


def test_a_validators_loader_is_this_one_with_another_end() -> None:
    config = ZephonDataLoader.Config(recipe="tests.integrations.recipes:shuffled", lanes=8, global_batch_size=16)
    assert dataclasses.replace(config, infinite=False).infinite is False  # as TorchTitan's Validator does
