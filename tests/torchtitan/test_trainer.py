"""TorchTitan's own Trainer, on gloo: `make test-torchtitan`. Everywhere else this is skipped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torchtitan", reason="TorchTitan is not installed here: make test-torchtitan")

from tests.torchtitan import legs
from tests.torchtitan.legs import apart, leg, stock
from zephon.run.ledger import compare

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
STEPS = 9


@pytest.fixture(scope="module")
def unbroken(folder: Path) -> dict[str, Any]:
    (said,) = leg(folder, "unbroken", 1, STEPS)
    assert said["error"] == "", (folder / f"unbroken-1-{STEPS}.0.log").read_text()[-3000:]
    return said


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
        ({"recipe": "tests.torchtitan.recipe:other_data"}, {}, "source.datasets"),
        ({}, {"hf_assets_path": "other_assets"}, "tokenizer"),
        ({}, {"training__global_batch_size": 16}, "global_batch_size"),
        ({}, {"training__seq_len": 32}, "max_length"),
        ({"lanes": 8}, {}, "--dataloader.lanes 4"),
    ],
    ids=["seed", "mixture", "shuffle", "data", "tokenizer", "global batch", "context length", "lanes"],
)
def test_a_changed_thing_that_defines_the_data_is_refused_by_name(
    folder: Path, unbroken: dict[str, Any], loader: dict[str, Any], changed: dict[str, Any], says: str
) -> None:
    if "hf_assets_path" in changed:
        changed = {"hf_assets_path": str(folder / changed["hf_assets_path"])}
    (said,) = leg(folder, "unbroken", 1, STEPS + 1, loader, **changed)
    assert says in said["error"]
    assert said["losses"] == {}


def test_another_local_batch_size_and_more_workers_have_the_same_digests(folder: Path, unbroken: dict[str, Any]) -> None:
    workers = {"recipe": "tests.torchtitan.recipe:more_workers"}
    (said,) = leg(folder, "local", 1, STEPS, workers, training__local_batch_size=8)
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
    (said,) = stock(folder, "stock", 1, 3)
    assert said["error"] == "", said["error"]
    (said,) = leg(folder, "stock", 1, 4)
    assert "another loader" in said["error"]
    anew = {"checkpoint__exclude_from_loading": ["dataloader"]}
    (said,) = leg(folder, "stock", 1, 4, {"fork": True}, **anew)
    assert said["error"] == ""
    assert list(said["losses"]) == ["4"]


def test_the_stock_loader_beside_this_one(folder: Path, unbroken: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """Two ranks instead of one; another number of ranks in the middle; and its state excluded from loading."""
    half = STEPS // 2
    ours, alone = legs.batches([unbroken]), stock(folder, "stock-unbroken", 1, STEPS)
    theirs = legs.batches(alone)
    here = in_common(ours, legs.batches(leg(folder, "ours-2", 2, STEPS)))
    there = in_common(theirs, legs.batches(stock(folder, "stock-2", 2, STEPS)))
    assert (here, there) == (STEPS, 0)

    (begun,) = stock(folder, "stock-cut", 1, half)
    refused = stock(folder, "stock-cut", 2, STEPS)
    assert all("resharding" in said["error"] or "dp_rank_1" in said["error"] for said in refused)
    (anew,) = stock(folder, "stock-cut", 1, STEPS, checkpoint__exclude_from_loading=["dataloader"])
    twice = set(begun["rows"]) & set(anew["rows"])
    distance = apart(anew["losses"], alone[0]["losses"])
    again = in_common(theirs[half:], legs.batches([anew]))
    assert (again, len(twice)) == (0, half * legs.SIZE)
    assert distance > 0.01

    (first,), resumed = leg(folder, "ours-cut", 1, half), leg(folder, "ours-cut", 2, STEPS)
    assert in_common(ours[half:], legs.batches(resumed)) == STEPS - half
    assert not set(first["rows"]) & {row for said in resumed for row in said["rows"]}
    mine = apart(resumed[0]["losses"], unbroken["losses"])
    assert mine < 1e-4
    with capsys.disabled():
        print(
            f"\n1 and 2 ranks, {STEPS} steps, global batches in common: this loader {here}, TorchTitan's {there}"
            f"\nresumed after step {half}: this loader on 2 ranks, {STEPS - half} of {STEPS - half} batches, losses within "
            f"{mine:.1e}, 0 rows twice; TorchTitan's refuses 2 ranks, and without its state on 1 rank: {again} batches, "
            f"losses {distance:.2f} apart, {len(twice)} rows twice"
        )


def in_common(some: list[list[str]], others: list[list[str]]) -> int:
    """In how many steps both have the same rows, in whichever order of the ranks."""
    return sum(sorted(one) == sorted(other) for one, other in zip(some, others, strict=True))
