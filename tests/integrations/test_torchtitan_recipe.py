from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integrations.recipes import SEQ, TEXTS, build, global_batches
from zephon.errors import ConfigError
from zephon.integrations import torchtitan
from zephon.integrations.torchtitan.recipe import Wanted, load_recipe
from zephon.launch.config.compose import compose
from zephon.ops.tokenizers import load_tokenizer
from zephon.pipeline.experiment import pipeline


def experiment(folder: Path, **fields: Any) -> str:
    (folder / "data").mkdir()
    (folder / "data" / "part.jsonl").write_text("".join(json.dumps(text) + "\n" for text in TEXTS))
    datasets = {"d": {"path": str(folder / "data")}}
    spec = {
        "tokenizer": {"id": "bytes"},
        "data": {"datasets": datasets, "chunk_bytes": 1024},
        "trainer": {"eval_data": datasets, "eval_every": 5},
    }
    file = folder / "experiment.yaml"
    file.write_text(yaml.safe_dump({**spec, **fields}))
    return str(file)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"recipe": ""}, "recipe is not given"),
        ({"recipe": "tests.integrations.nowhere:packed"}, "No module named"),
        ({"recipe": "tests.integrations.recipes:nothing"}, "no attribute 'nothing'"),
        ({"recipe": "tests.integrations.recipes:SEQ"}, "is no function"),
        ({"recipe": "no_pipeline"}, "ends before"),
        ({"recipe": "with_batch"}, "ends before"),
        ({"recipe": "with_lanes"}, "lanes=4, and --dataloader.lanes is 8"),
        ({"recipe": "packed", "lanes": None}, "lanes is not given"),
        ({"recipe": "another_seed", "infinite": False}, "never ends"),
        ({"recipe": "/nowhere/experiment.yaml"}, "does not exist"),
        ({"recipe": "exp-1"}, "exp1"),
    ],
)
def test_a_recipe_that_cannot_work_is_refused_with_what_to_write(changed: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        build(**changed)


def test_a_recipe_may_name_the_lanes_itself() -> None:
    assert build(recipe="with_lanes", lanes=None).lanes == 4


def test_an_experiments_file_gives_the_same_global_batches_as_its_own_trainer(tmp_path: Path) -> None:
    file = experiment(tmp_path)
    given = ["global_batch_size=16", "trainer.steps=9"]
    spec = compose([f"conf={file}", *given, f"pipeline.context_length={SEQ}"]).spec
    own = pipeline(spec, load_tokenizer("bytes"), dp_rank=0, dp_size=1)
    loaders = [build(4, rank, recipe=file) for rank in range(4)]
    got = global_batches(loaders, 3)
    for microbatches, step in zip(own.steps(), got, strict=False):
        expected = [tuple(row[:-1].tolist()) for batch in microbatches for row in batch.fields["input_ids"]]
        assert [inputs for inputs, _, _ in step] == expected
    for loader in loaders:
        loader.close()
    own.close()


def test_an_experiments_held_out_data_is_what_is_validated_on(tmp_path: Path) -> None:
    file = experiment(tmp_path)
    held_out = [list(build(2, rank, recipe=file, held_out=True, infinite=False)) for rank in range(2)]
    assert len(held_out[0]) == len(held_out[1]) > 0


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"global_batch_size": 32}, "global_batch_size=32, and --training.global_batch_size is 16"),
        ({"lanes": {"count": 4}}, "lanes.count=4, and --dataloader.lanes is 8"),
        ({"pipeline": {"context_length": 64}}, "--training.seq_len is 16"),
    ],
)
def test_what_an_experiment_names_has_to_be_what_torchtitan_says(tmp_path: Path, fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        build(recipe=experiment(tmp_path, **fields))


def test_a_recipe_with_another_tokenizer_than_the_models_is_refused() -> None:
    wanted = Wanted(load_tokenizer("gpt2"), SEQ, True, 16, 8, 1, 0)
    with pytest.raises(ConfigError, match="'bytes', and --hf_assets_path holds 'gpt2'"):
        load_recipe("tests.integrations.recipes:packed", wanted)
    assert load_recipe("tests.integrations.recipes:with_their_tokenizer", wanted).world.lanes == 8


def test_without_torchtitan_the_trainer_says_what_to_install() -> None:
    try:
        import torchtitan as theirs  # noqa: F401
    except ImportError:
        with pytest.raises(ConfigError, match=r"zephon-elastic\[torchtitan\]"):
            torchtitan.ZephonTrainer  # noqa: B018
    else:
        assert torchtitan.ZephonTrainer.__name__ == "ZephonTrainer"
