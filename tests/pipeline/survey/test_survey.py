"""A full pass over data: everything that was put into them is reported, whatever the processes; numbers are right."""

from __future__ import annotations

import itertools
import json
import random
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon.io import Dataset
from zephon.launch.cli.main import main
from zephon.pipeline.survey import survey
from zephon.pipeline.survey.grams import grams_of
from zephon.pipeline.survey.scripts import NAMES, letters_by_script
from zephon.pipeline.survey.summary import Lengths

WORDS = [f"word{i}" for i in range(3000)]


def sentence(chance: random.Random, words: int = 40) -> str:
    return " ".join(chance.choices(WORDS, k=words))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Training text with one of each trouble, text that repeats some, held-out text of which a third is trained on."""
    chance, top = random.Random(1), tmp_path_factory.mktemp("data")
    web = [sentence(chance) for _ in range(300)]
    held = [sentence(chance) for _ in range(30)]
    books = [sentence(chance) for _ in range(100)]
    lines = [*web, web[3], web[3], " \n", "x" * (2 << 20), "привет мир " * 20]
    lines += [f"Before: {text.upper()}! and after" for text in held[:10]]  # other signs and letters, the same words
    (top / "web.jsonl").write_text(
        "".join(json.dumps({"text": text}) + "\n" for text in lines) + '{"text": broken}\n{"other": 1}\n', "utf-8"
    )
    (top / "books.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in [*books, *web[:5]]))
    (top / "held.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in held))
    return top


@pytest.mark.parametrize("workers", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_all_that_was_put_in_is_reported(folder: Path, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[survey.__module__], "PIECE", 10_000)
    web, books, held = (Dataset.from_path(name, str(folder / f"{name}.jsonl")) for name in ("web", "books", "held"))
    done: list[int] = []
    result = survey([web, books], ["text", "text"], [held], ["text"], tokenizer="bytes", workers=workers, progress=done.append)
    assert sum(done) == web.size + books.size + held.size
    summary = result.summaries["web"]
    assert (summary.documents, summary.bad, summary.without, summary.empty) == (315, 1, 1, 1)
    kinds = {kind: (address, what) for kind, address, what in summary.troubles}
    assert kinds.keys() == {"malformed", "no text", "empty", "huge"}
    assert "byte" in kinds["malformed"][0]
    assert "web.jsonl" in kinds["malformed"][1]
    assert result.repeats == {"web": 2}
    assert result.shared == {("web", "books"): 5}
    assert len(result.examples) == 5
    assert summary.overlap == 10
    assert result.overlap is not None
    assert result.overlap.met == 10 * 28
    assert result.overlap.known == 30 * 28
    assert summary.scripts().keys() == {"Latin", "Cyrillic"}
    assert summary.tokens.sum == summary.text_bytes
    assert result.faulty
    assert not survey([books], ["text"]).faulty


@given(st.lists(st.integers(0, 1 << 30), min_size=1, max_size=200))
def test_a_quantile_is_right_to_a_fifth_and_sums_are_exact_however_pieces_are_added(lengths: list[int]) -> None:
    whole, parts = Lengths(), Lengths()
    whole.add(np.array(lengths))
    for length in lengths:
        part = Lengths()
        part.add(np.array([length]))
        parts.merge(part)
    assert (parts.counts == whole.counts).all()
    assert (whole.sum, whole.greatest, whole.number) == (sum(lengths), max(lengths), len(lengths))
    for share in (0.1, 0.5, 0.9, 1.0):
        exact = sorted(lengths)[max(0, -(-int(share * 1000) * len(lengths) // 1000) - 1)]
        assert exact <= whole.quantile(share) <= max(exact * 1.2, exact + 1)


def test_runs_of_words_are_the_same_wherever_they_stand_and_hashes_do_not_fall_together() -> None:
    chance = random.Random(2)
    runs = [sentence(chance, 13) for _ in range(2000)]
    assert len(np.unique(np.concatenate([grams_of(run) for run in runs]))) == 2000
    assert grams_of(runs[0])[0] in grams_of(f"some words before, {runs[0]} and some after")
    assert grams_of("A b, c!").tolist() == grams_of("a b c").tolist()
    assert len(grams_of("  ... ")) == 0


def test_letters_are_counted_by_their_script() -> None:
    text = "abc é ß, 123! Ελλ мир שלום 中文字 かな カナ 한국 हिन्दी ไทย 👍"
    counts = {name: count for name, count in zip(NAMES, letters_by_script(text).tolist(), strict=True) if count}
    assert counts == {
        "Latin": 5,
        "Greek": 3,
        "Cyrillic": 3,
        "Hebrew": 4,
        "Han": 3,
        "Hiragana": 2,
        "Katakana": 2,
        "Hangul": 2,
        "Devanagari": 6,
        "Thai": 3,
    }


def test_the_command_lists_shows_and_checks_a_place_or_an_experiment(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    web = str(folder / "web.jsonl")
    assert main(["data", "ls", str(folder), "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)["datasets"]
    assert [shard["name"] for shard in listed["shards"]] == ["books.jsonl", "held.jsonl", "web.jsonl"]
    assert 400 <= listed["documents"] <= 500
    assert main(["data", "head", str(folder / "books.jsonl"), "count=2"]) == 0
    text = capsys.readouterr().out
    assert text.count("text: word") == 2
    assert "books.jsonl" in text
    assert main(["data", "check", web, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["datasets"]["data"]["malformed"] == 1
    experiment = ["conf=bytes", "~data", "name=x", f"data.datasets.web.path={web}", "data.datasets.web.fraction=[0, 1]"]
    experiment += [f"trainer.eval_data.held.path={folder / 'held.jsonl'}", "pipeline.context_length=32"]
    assert main(["data", "check", *experiment]) == 2
    text = " ".join(capsys.readouterr().out.split())
    for words in ("280 of 840 runs of 13 words are in training text: 33.33%", "10 documents of web have some", "malformed: "):
        assert words in text
    assert main(["data", "head", *experiment, "--json", "count=1"]) == 0
    shown = json.loads(capsys.readouterr().out)["documents"]
    assert [document["dataset"] for document in shown] == ["web", "held"]
    for document in shown:
        assert bytes(document["tokens"][:-1]).decode() == document["fields"]["text"]
        assert document["trained"] == [0] + [1] * (len(document["tokens"]) - 1)
    for argv, words in itertools.chain(
        [
            (["data"], "needs what to do"),
            (["data", "lst", web], "did you mean 'ls'"),
            (["data", "ls", web, "conf=bytes"], "a URL and"),
        ],
        [(["data", "ls", web, web], "takes ls|head|check and URL"), (["data", "head", web, "count=0"], "whole number")],
    ):
        assert main(argv) == 65
        assert words in capsys.readouterr().err
