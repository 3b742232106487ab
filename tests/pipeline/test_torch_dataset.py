"""A DataLoader's worker is another process: the pipeline here keeps the loop's place."""

from __future__ import annotations

import itertools
import pickle
import threading
from typing import Any

import pytest
from torch.utils.data import DataLoader

from zephon import Dataset, InMemoryShard, Pipeline, StaticMixtureWorkSource
from zephon.errors import StateError

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


def small() -> Pipeline:
    rows = [{"text": f"{i:090d}"} for i in range(200)]
    source = StaticMixtureWorkSource([Dataset.from_dict("d", {"s": InMemoryShard(rows)})], chunk_bytes=1000)
    made = Pipeline(source).options(max_workers=0).tokenize(tokenizer_id="bytes", field="text", special_tokens="none")
    return made.pack_flat(90, algorithm="wrap").batch(2)


def loader(pipeline: Pipeline, **options: Any) -> DataLoader[Any]:
    return DataLoader(pipeline.to_torch_dataset(), batch_size=None, num_workers=1, **options)


def some(batches: Any, count: int) -> list[list[list[int]]]:
    return [batch["input_ids"].tolist() for batch in itertools.islice(batches, count)]


WHOLE = some(small().to_torch_dataset(), 200)


def test_the_state_here_is_that_of_the_batch_received_whatever_the_worker_made_ahead() -> None:
    pipeline = small()
    batches = iter(loader(pipeline, prefetch_factor=8))
    for number in range(4):
        assert type(next(batches)) is dict
        assert pipeline.checkpoint()["step"] == number + 1
    assert some(small().restore(pipeline.checkpoint()).to_torch_dataset(), 200) == WHOLE[4:]


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_an_epoch_that_is_left_early_goes_on_where_the_loop_was(context: str) -> None:
    torch_loader = loader(small(), multiprocessing_context=context)
    first = some(torch_loader, 5)
    second = some(torch_loader, 200)
    assert first == WHOLE[:5]
    assert second == WHOLE[5:]


def test_a_worker_that_stays_is_refused_after_an_epoch_that_was_left_early_and_not_after_a_whole_one() -> None:
    torch_loader = loader(small(), persistent_workers=True)
    some(torch_loader, 3)
    with pytest.raises(RuntimeError, match=r"persistent_workers=True\)(.|\n)*never come"):
        some(torch_loader, 3)
    whole = loader(small(), persistent_workers=True)
    assert some(whole, 200) == WHOLE


def test_a_state_that_nobody_knows_since_a_thread_takes_batches_ahead_is_refused_until_one_is_restored() -> None:
    pipeline = small()
    torch_loader = loader(pipeline)
    sent = pickle.dumps(_as_a_worker_sends(torch_loader.dataset))
    pins = threading.Thread(target=_pin_memory_loop, args=(sent,))
    pins.start()
    pins.join()
    with pytest.raises(StateError, match=r"num_workers=0"):
        pipeline.checkpoint()
    assert some(pipeline.restore(small().checkpoint()).to_torch_dataset(), 2) == WHOLE[:2]


def _as_a_worker_sends(dataset: Any) -> Any:
    from zephon.pipeline.torch_dataset import FromWorker

    batch = next(iter(dataset.pipeline))
    return FromWorker(batch.to_training(), dataset.token, batch.state)


def _pin_memory_loop(sent: bytes) -> None:
    pickle.loads(sent)
