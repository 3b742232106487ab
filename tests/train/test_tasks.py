"""Multiple choice: the formats, what is refused, and one number for one set of weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.train.ranks import Meet, on_ranks
from tests.train.synthetic import VOCAB, spec
from tests.train.test_worker import workers, write_run
from tests.train.training import job, some_steps
from zephon.errors import ConfigError, DataError, StateError
from zephon.launch.cli.main import main
from zephon.ops.tokenizers import load_tokenizer
from zephon.run.directory import RunDir
from zephon.run.evaluation import TaskScore, read_tasks, write_tasks
from zephon.spec.experiment import ModelSpec
from zephon.train.model import Decoder, initialise
from zephon.train.session import build
from zephon.train.task_files import Item, read_items
from zephon.train.tasks import Scorer, evaluate_tasks, score
from zephon.train.weights import read_weights


def write(path: Path, *lines: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.parametrize(
    ("line", "pairs", "answer"),
    [
        ({"prompt": "a b", "choices": [" c", " d"], "answer": 1}, [("a b", " c"), ("a b", " d")], 1),
        ({"query": "a", "choices": ["c", "d", "e"], "gold": 2}, [("a", " c"), ("a", " d"), ("a", " e")], 2),
        ({"context_options": ["a", "b"], "continuation": "c", "gold": 0}, [("a", " c"), ("b", " c")], 0),
        ({"ctx": "a", "endings": ["c", "d"], "label": "1"}, [("a", " c"), ("a", " d")], 1),
        ({"goal": "a", "sol1": "c", "sol2": "d", "label": 0}, [("Question: a\nAnswer:", f" {x}") for x in "cd"], 0),
        ({"question": "a", "choices": ["c", "d"], "answer": 1}, [("Question: a\nAnswer:", f" {x}") for x in "cd"], 1),
        (
            {"question": "a", "choices": {"text": ["c", "d"], "label": ["A", "B"]}, "answerKey": "B"},
            [("Question: a\nAnswer:", " c"), ("Question: a\nAnswer:", " d")],
            1,
        ),
    ],
)
def test_lines_of_every_known_collection_become_items(
    tmp_path: Path, line: dict[str, Any], pairs: list[tuple[str, str]], answer: int
) -> None:
    (item,) = read_items(write(tmp_path / "arc.jsonl", line))
    assert item == Item(task="arc", pairs=tuple(pairs), answer=answer)
    (named,) = read_items(write(tmp_path / "arc.jsonl", {**line, "task": "easy"}))
    assert named.task == "easy"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ({"prompt": "a", "choices": [" c", " d"], "answer": 2}, "its answer 2 is none of 2 choices"),
        ({"prompt": "a", "choices": [" c"], "answer": 0}, "it has 1 choice"),
        ({"prompt": "a", "choices": [" c", ""], "answer": 0}, "a choice is empty"),
        ({"prompt": "a", "choices": [" c", 3], "answer": 0}, "3 is no text"),
        ({"context": "a", "continuation": "b"}, "which has no choices"),
        ({"text": "a"}, "the fields text are of no known format"),
        ({"question": "a", "choices": {"text": ["c"], "label": ["A"]}, "answerKey": "Z"}, "line 2"),
    ],
)
def test_a_line_that_is_no_item_is_refused_with_its_number(tmp_path: Path, line: dict[str, Any], words: str) -> None:
    path = write(tmp_path / "t.jsonl", {"prompt": "a", "choices": [" b", " c"], "answer": 0}, line)
    with pytest.raises(DataError) as caught:
        read_items(path)
    assert words in caught.value.what
    assert "line 2" in caught.value.what


def test_files_without_an_item_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such file"):
        read_items(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n\n")
    with pytest.raises(ConfigError, match="has no item"):
        read_items(tmp_path / "empty.jsonl")


def model() -> Decoder:
    decoder = Decoder(ModelSpec(dim=32, layers=2), load_tokenizer("bytes").vocab_size)
    initialise(decoder, seed=3, layers=2)
    return decoder.eval()


def scorer(*, length: int = 64) -> Scorer:
    return Scorer(model(), load_tokenizer("bytes"), length=length, begin=None, device=torch.device("cpu"))


def test_the_choice_is_the_one_whose_own_tokens_have_the_lowest_mean_loss() -> None:
    decoder, tokenizer = model(), load_tokenizer("bytes")
    item = Item(task="t", pairs=(("the prompt is", " red and long"), ("the prompt is", " so")), answer=0)
    means = []
    for context, continuation in item.pairs:
        ids = torch.tensor(tokenizer.encode([context + continuation])[0].astype("int64"))
        logits = decoder(ids[None, :-1]).detach().log_softmax(-1)[0]
        begin = len(context)
        means.append(-sum(float(logits[i - 1, ids[i]]) for i in range(begin, len(ids))) / (len(ids) - begin))
    assert scorer().choose(item) == (means.index(min(means)), False)


def test_a_text_that_is_too_long_loses_its_beginning_and_is_counted() -> None:
    short, long = scorer(length=12), scorer()
    pairs = tuple(("x" * 50 + "the end", f" {word}") for word in ("one", "two", "three"))
    assert short.choose(Item(task="t", pairs=pairs, answer=0))[1]
    assert not long.choose(Item(task="t", pairs=pairs, answer=0))[1]
    (found,) = score(short, [Item(task="t", pairs=pairs, answer=0)], step=3)
    assert (found.items, found.truncated, found.baseline) == (1, 1, pytest.approx(1 / 3))


def test_centred_accuracy_is_zero_for_guessing_and_one_for_no_mistake() -> None:
    found = [TaskScore(task="t", step=1, items=8, correct=n, baseline=0.25).centred for n in (2, 8, 0)]
    assert found == pytest.approx([0.0, 1.0, -1 / 3])


def test_scores_are_kept_by_task_and_step_and_the_later_one_counts(tmp_path: Path) -> None:
    run = RunDir(str(tmp_path))
    assert read_tasks(run) == []
    first = [TaskScore(task=name, step=5, items=4, correct=1, baseline=0.5) for name in ("b", "a")]
    write_tasks(run, first)
    again = TaskScore(task="b", step=5, items=4, correct=3, baseline=0.5)
    write_tasks(run, [again])
    assert read_tasks(run) == [first[1], again]


def trained(meet: Meet, rank: int, folder: str) -> None:
    """Two canonical steps, saved by all ranks."""
    session = build(job(spec(trainer__reduction="canonical"), folder), meet())
    some_steps(session, 2)
    session.save(wait=True)
    session.settle()
    session.close()
    session.membership.leave()


@pytest.mark.slow
def test_runs_of_every_size_leave_weights_with_the_same_score(tmp_path: Path) -> None:
    """With other weights at one size the digest of all losses would differ, and with it the test."""
    totals = set()
    for size in (1, 2):
        on_ranks(trained, size, str(tmp_path / str(size)))
        step, weights = read_weights(RunDir(str(tmp_path / str(size))))
        assert (step, len(weights["embed.weight"])) == (2, VOCAB)
        totals.add(tuple(float(tensor.double().sum()) for _, tensor in sorted(weights.items())))
    assert len(totals) == 1


@pytest.mark.slow
def test_the_verb_scores_the_newest_checkpoint_and_writes_it_down(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path, trainer__steps=2)
    with pytest.raises(StateError, match="no complete checkpoint"):
        read_weights(RunDir(str(tmp_path)))
    assert workers(tmp_path, 1) == [0]
    items = [{"prompt": "number 1 is followed by", "choices": [" 2", " cat", " 9"], "answer": i % 3} for i in range(6)]
    path = write(tmp_path / "numbers.jsonl", *items)
    capfd.readouterr()
    assert main(["evaluate", str(tmp_path), "--tasks", str(path), "--json"]) == 0
    (printed,) = json.loads(capfd.readouterr().out)
    (recorded,) = read_tasks(RunDir(str(tmp_path)))
    assert (recorded.task, recorded.step, recorded.items, recorded.correct) == ("numbers", 2, 6, 2)
    assert printed["centred"] == recorded.centred == pytest.approx(0.0)
    assert evaluate_tasks(RunDir(str(tmp_path)), [path]) == [recorded]
    assert main(["evaluate", str(tmp_path)]) == 65
