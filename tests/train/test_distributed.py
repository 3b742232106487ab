"""Seats and meshes: arithmetic and refusals."""

from __future__ import annotations

import pytest

from zephon.errors import ConfigError
from zephon.train.distributed import ProcessInfo, choose_device, mesh_shape


def test_a_process_without_variables_is_alone():
    assert ProcessInfo.from_environment({}) == ProcessInfo(rank=0, size=1, local_rank=0, local_size=1)


def test_elastics_variables_give_the_seat():
    env = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    assert ProcessInfo.from_environment(env) == ProcessInfo(rank=3, size=4, local_rank=1, local_size=2)


@pytest.mark.parametrize("env", [{"RANK": "0"}, {"WORLD_SIZE": "2"}])
def test_half_of_the_variables_is_an_error(env):
    with pytest.raises(ConfigError, match="only one of the two"):
        ProcessInfo.from_environment(env)


@pytest.mark.parametrize(
    "parallel, tensor, size, local, shape",
    [
        ("ddp", 1, 8, 4, (8, 1, 1)),
        ("fsdp", 1, 8, 4, (1, 8, 1)),
        ("hsdp", 1, 8, 4, (2, 4, 1)),
        ("fsdp", 2, 8, 4, (1, 4, 2)),
        ("hsdp", 2, 8, 4, (2, 2, 2)),
        ("hsdp", 1, 1, 1, (1, 1, 1)),
    ],
)
def test_the_mesh_has_replicas_shards_and_tensor_peers(parallel, tensor, size, local, shape):
    assert mesh_shape(parallel=parallel, tensor=tensor, size=size, local_size=local) == shape


def test_sizes_that_do_not_divide_are_refused():
    with pytest.raises(ConfigError, match="does not divide the 3 ranks"):
        mesh_shape(parallel="fsdp", tensor=2, size=3, local_size=3)
    with pytest.raises(ConfigError, match="the 4 ranks of a node, which do not divide 6"):
        mesh_shape(parallel="hsdp", tensor=1, size=6, local_size=4)


def test_a_device_that_is_not_there_is_refused_when_asked_for():
    assert choose_device("cpu", local_rank=5).type == "cpu"
    with pytest.raises(ConfigError, match=r"trainer\.device=cuda"):
        choose_device("cuda", local_rank=99)
