"""A pipeline as a torch ``IterableDataset``, for code that wants a DataLoader.

    dataset = pipeline.to_torch_dataset(to_training={"return_labels": True})
    for batch in DataLoader(dataset, batch_size=None, num_workers=1): ...

Batches are made by the pipeline, so the DataLoader must not batch again (``batch_size=None``), and more than one of its
workers would each deliver the same batches. A worker is another process with a copy of the pipeline, so that each batch
brings the state after it along: where the loop takes the batch, the pipeline here goes on to that state.

    worker     pipeline' --- (tensors, state) ---> unpickled where the loop asks: dict of tensors, and pipeline.follow(state)

So `checkpoint` here is that of the batch received last, whatever the worker made ahead, and an epoch that is left early goes on
there. Where nobody can tell which batch the loop has (a thread that pins memory takes them ahead) or the worker stays and has
made more than the loop took (``persistent_workers``), that is refused.
"""

from __future__ import annotations

import os
import threading
import uuid
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from torch.utils.data import IterableDataset, get_worker_info

from zephon.batch import SampleBatch, Tensors, TrainingOptions
from zephon.cursor import RankState
from zephon.errors import ConfigError
from zephon.types import Json


class Source(Protocol):
    """What a pipeline is to a DataLoader."""

    def __iter__(self) -> Iterator[SampleBatch]: ...

    def follow(self, state: RankState | None) -> None: ...

    def state_dict(self) -> Json: ...

    def load_state_dict(self, state: Mapping[str, object]) -> None: ...


class FromWorker(dict[str, Any]):
    """Tensors on the way from a worker to the loop, where they become a plain dict."""

    def __init__(self, tensors: Tensors, token: str, state: RankState) -> None:
        super().__init__(tensors)
        self._arguments = token, state

    def __copy__(self) -> FromWorker:  # which a worker makes when it turns arrays into tensors
        return FromWorker(dict(self), *self._arguments)

    def __reduce__(self) -> tuple[Callable[..., Tensors], tuple[Tensors, str, RankState]]:
        return _received, (dict(self), *self._arguments)


def _received(tensors: Tensors, token: str, state: RankState) -> Tensors:
    """In the process of the loop, when it takes the batch."""
    dataset = _here.get(token)
    if dataset is not None:
        dataset.pipeline.follow(None if _PINS_MEMORY in threading.current_thread().name else state)
    return tensors


_PINS_MEMORY = "_pin_memory_loop"  # the thread of a DataLoader that unpickles before the loop asks


class PipelineDataset(IterableDataset[Tensors]):
    """Yields ``batch.to_training(**to_training)``.

    Args:
        pipeline: what to iterate over.
        stateful: whether `state_dict` and `load_state_dict` carry the pipeline's state.
        to_training: options of `SampleBatch.to_training`.

    Raises:
        ConfigError: on iteration in one of several DataLoader workers.
    """

    def __init__(self, pipeline: Source, *, stateful: bool = True, to_training: TrainingOptions) -> None:
        self.pipeline = pipeline
        self.stateful = stateful
        self._to_training = to_training
        self.token = uuid.uuid4().hex  # by which a batch from a worker finds the one here
        self._left: int | None = None  # the worker process in which an iteration did not come to its end
        _here[self.token] = self

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        _here[self.token] = self

    def __iter__(self) -> Iterator[Tensors]:
        info = get_worker_info()
        if info is not None and info.num_workers > 1:
            raise ConfigError(
                f"DataLoader(num_workers={info.num_workers})",
                follows="every worker would deliver the same batches, and each would be trained several times",
                remedy="use num_workers=0 or 1; the pipeline has workers of its own, see options(max_workers=)",
            )
        if info is None:
            for batch in self.pipeline:
                yield batch.to_training(**self._to_training)
            return
        if self._left == os.getpid():
            raise ConfigError(
                "DataLoader(persistent_workers=True) begins again, after an epoch that was left early",
                follows="the batches that its worker had made ahead would never come",
                remedy="leave persistent_workers out, or use num_workers=0: the pipeline has workers of its own",
            )
        self._left = os.getpid()
        for batch in self.pipeline:
            yield FromWorker(batch.to_training(**self._to_training), self.token, batch.state)
        self._left = None

    def state_dict(self) -> Json:
        """The pipeline's state after the last batch yielded; empty when not stateful."""
        return self.pipeline.state_dict() if self.stateful else {}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        if self.stateful and state:
            self.pipeline.load_state_dict(state)


_here: weakref.WeakValueDictionary[str, PipelineDataset] = weakref.WeakValueDictionary()
