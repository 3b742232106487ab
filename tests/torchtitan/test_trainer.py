"""TorchTitan's own Trainer, on gloo: `make test-torchtitan`. Everywhere else this is skipped."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torchtitan", reason="TorchTitan is not installed here: make test-torchtitan")

from tests.torchtitan import legs, recipe
from zephon.run.ledger import compare

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
STEPS = 9


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    made = tmp_path_factory.mktemp("titan")
    texts = [f"number {i} is {i * i} and its neighbour is {i + 1}. " * (1 + i % 7) for i in range(1500)]
    for name, part in {"prose": texts[:900], "code": [t.upper() for t in texts[600:1400]], "held": texts[1400:]}.items():
        (made / name).mkdir()
        (made / name / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in part))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = ["<s>", "</s>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=600, special_tokens=special, initial_alphabet=alphabet))
    (made / "assets").mkdir()
    tokenizer.save(str(made / "assets" / "tokenizer.json"))
    (made / "assets" / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    os.environ[recipe.FOLDER] = str(made)
    (said,) = leg(made, "seed", 1, 1, checkpoint__create_seed_checkpoint=True)
    assert said["error"] == ""
    yield made
    del os.environ[recipe.FOLDER]


def leg(folder: Path, name: str, ranks: int, steps: int, loader: dict[str, Any] | None = None, **changed: Any) -> list[dict]:
    """Starts with the same weights, which otherwise follow from how the model is sharded."""
    out = folder / name

    def make() -> Any:
        return legs.config(folder, steps=steps, loader=loader or {}, dump_folder=str(out), **changed)

    if not out.exists() and name != "seed":
        shutil.copytree(folder / "seed" / "checkpoint", out / "checkpoint")
    return legs.run(ranks, make, folder / f"{name}-{ranks}-{steps}")


@pytest.fixture(scope="module")
def unbroken(folder: Path) -> dict[str, Any]:
    (said,) = leg(folder, "unbroken", 1, STEPS)
    assert said["error"] == "", (folder / f"unbroken-1-{STEPS}.0.log").read_text()[-3000:]
    return said


def apart(losses: dict[str, float], others: dict[str, float]) -> float:
    return max(abs(loss - others[step]) for step, loss in losses.items())


@pytest.mark.parametrize("chain", [(2, 1, 2), (4,)], ids=["2-1-2", "4"])
def test_degrees_change_through_torchtitans_checkpoints_with_equal_digests_and_losses(
    folder: Path, unbroken: dict[str, Any], chain: tuple[int, ...]
) -> None:
    name = "chain" + "".join(map(str, chain))
    losses: dict[str, float] = {}
    for number, ranks in enumerate(chain, 1):
        reports = leg(folder, name, ranks, STEPS * number // len(chain))
        assert [said["error"] for said in reports] == [""] * ranks
        losses |= reports[0]["losses"]
        last = max(map(int, reports[0]["tokens"]))
        assert reports[0]["tokens"][str(last)] == last * legs.SIZE * legs.SEQ
    found = compare(str(folder / name), str(folder / "unbroken"))
    assert (found.steps, found.first) == (STEPS, None), found.sentence
    assert set(losses) == set(unbroken["losses"])
    assert apart(losses, unbroken["losses"]) < 1e-4


@pytest.mark.parametrize(
    ("loader", "changed", "says"),
    [
        ({"recipe": "tests.torchtitan.recipe:another_seed"}, {}, "seed"),
        ({"recipe": "tests.torchtitan.recipe:another_mixture"}, {}, "source.mixture.code"),
        ({"recipe": "tests.torchtitan.recipe:another_shuffle"}, {}, "buffer"),
        ({}, {"training__global_batch_size": 16}, "global_batch_size"),
        ({}, {"training__seq_len": 32}, "max_length"),
        ({"lanes": 8}, {}, "--dataloader.lanes 4"),
    ],
    ids=["seed", "mixture", "shuffle", "global batch", "context length", "lanes"],
)
def test_a_changed_thing_that_defines_the_data_is_refused_by_name(
    folder: Path, unbroken: dict[str, Any], loader: dict[str, Any], changed: dict[str, Any], says: str
) -> None:
    (said,) = leg(folder, "unbroken", 1, STEPS + 1, loader, **changed)
    assert says in said["error"]
    assert said["losses"] == {}


def test_another_local_batch_size_has_the_same_digests(folder: Path, unbroken: dict[str, Any]) -> None:
    (said,) = leg(folder, "local", 1, STEPS, training__local_batch_size=8)
    assert said["error"] == ""
    assert compare(str(folder / "local"), str(folder / "unbroken")).first is None
    assert apart(said["losses"], unbroken["losses"]) < 1e-4


def test_validation_has_the_same_loss_at_every_degree_and_ends(folder: Path) -> None:
    from zephon.integrations.torchtitan import ZephonDataLoader

    held = ZephonDataLoader.Config(recipe="tests.torchtitan.recipe:held_out", lanes=4)
    losses = []
    for ranks in (1, 2):
        reports = leg(
            folder, f"validated{ranks}", ranks, 2, validator__enable=True, validator__steps=-1, validator__freq=2,
            validator__dataloader=held,
        )  # fmt: skip
        assert [said["error"] for said in reports] == [""] * ranks
        losses.append(reports[0]["validation"])
    assert losses[0].keys() == losses[1].keys() == {"1", "2"}
    assert apart(losses[0], losses[1]) < 1e-5


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"training__global_batch_size": -1}, "follows the number of GPUs"),
        ({"checkpoint__enable": False}, "--checkpoint.enable is off"),
        ({"checkpoint__last_save_model_only": True}, "no-last-save-model-only"),
        ({"checkpoint__exclude_from_loading": ["dataloader"]}, "--dataloader.fork"),
        ({"training__local_batch_size": 3}, "local_batch_size 3"),
    ],
)
def test_what_would_change_the_data_is_refused_on_every_rank_before_there_is_a_model(
    folder: Path, changed: dict[str, Any], says: str
) -> None:
    for said in leg(folder, "refused", 2, 2, **changed):
        assert says in said["error"]


def test_a_stock_loaders_checkpoint_is_said_and_the_data_begins_anew_on_purpose(folder: Path) -> None:
    from torchtitan.hf_datasets.text_datasets import DATASETS, DatasetConfig, HuggingFaceTextDataLoader

    def rows(path: str) -> Any:
        from datasets import load_dataset

        return load_dataset("json", data_files=str(folder / "prose" / "a.jsonl"), split="train", streaming=True)

    DATASETS["test"] = DatasetConfig(path="", loader=rows, sample_processor=lambda sample: sample["text"])
    stock = HuggingFaceTextDataLoader.Config(dataset="test")

    def make() -> Any:
        made = legs.config(folder, steps=3, dump_folder=str(folder / "stock"))
        made.dataloader = stock
        return made

    (said,) = legs.run(1, make, folder / "stock-1-3")
    assert said["error"] == "", said["error"]
    (said,) = leg(folder, "stock", 1, 4)
    assert "another loader" in said["error"]
    anew = {"checkpoint__exclude_from_loading": ["dataloader"]}
    (said,) = leg(folder, "stock", 1, 4, {"fork": True}, **anew)
    assert said["error"] == ""
    assert list(said["losses"]) == ["4"]
    reports = legs.run(2, make, folder / "stock-2-3")  # the stock loader itself refuses another degree
    assert all("resharding" in said["error"] or "dp_rank_1" in said["error"] for said in reports)
