"""A pipeline as a torch ``IterableDataset``, for code that wants a DataLoader.

    dataset = pipeline.to_torch_dataset(to_training={"return_labels": True})
    for batch in DataLoader(dataset, batch_size=None, num_workers=1): ...

Batches are made by the pipeline, so the DataLoader must not batch again (``batch_size=None``), and more than one of its
workers would each deliver the same batches. The state is that of the batch yielded last in the process that iterates:
with ``num_workers=0`` it is here; with a worker, torchdata's StatefulDataLoader fetches it from there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from torch.utils.data import IterableDataset, get_worker_info

from zephon.batch import SampleBatch, Tensors, TrainingOptions
from zephon.errors import ConfigError
from zephon.types import Json


class Source(Protocol):
    """What a pipeline is to a DataLoader."""

    def __iter__(self) -> Iterator[SampleBatch]: ...

    def state_dict(self) -> Json: ...

    def load_state_dict(self, state: Mapping[str, object]) -> None: ...


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

    def __iter__(self) -> Iterator[Tensors]:
        info = get_worker_info()
        if info is not None and info.num_workers > 1:
            raise ConfigError(
                f"DataLoader(num_workers={info.num_workers})",
                follows="every worker would deliver the same batches, and each would be trained several times",
                remedy="use num_workers=0 or 1; the pipeline has workers of its own, see options(max_workers=)",
            )
        for batch in self.pipeline:
            yield batch.to_training(**self._to_training)

    def state_dict(self) -> Json:
        """The pipeline's state after the last batch yielded; empty when not stateful."""
        return self.pipeline.state_dict() if self.stateful else {}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        if self.stateful and state:
            self.pipeline.load_state_dict(state)
