"""A performance setting does not decide ids: every definition gives the reference's ids, whichever back end is asked for."""

from __future__ import annotations

import dataclasses
import json
import pickle
import warnings
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Library

from tests.ops.definitions import DEFINITIONS, definition_of
from tests.ops.test_tokenizers import needs_fastokens
from zephon import Dataset, InMemoryShard, Pipeline, StaticMixtureWorkSource
from zephon.errors import StateError
from zephon.ops.tokenizers import Tokenizer, load_tokenizer, proof
from zephon.ops.tokenizers.adversarial import adversarial

NAMES = sorted(DEFINITIONS)
UNKNOWN = ("<unk>", "[UNK]")
BYTE_LEVEL = "BPE, ByteLevel, added tokens"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    proof.prove.cache_clear()


def load(definition: str, directory: Path, backend: str = "auto") -> Tokenizer:
    directory.mkdir(exist_ok=True)
    (directory / "tokenizer.json").write_text(definition, "utf-8")
    return load_tokenizer(str(directory), backend=backend)


def special_ids(definition: str) -> set[int]:
    """Ids of control tokens; what a model gives for what it does not know is none, though it is called special."""
    loaded = json.loads(definition)
    processor = loaded["post_processor"] or {}
    named = {processor[key][1] for key in ("sep", "cls") if key in processor}
    return named | {token["id"] for token in loaded["added_tokens"] if token["special"] and token["content"] not in UNKNOWN}


def of_library(definition: str, texts: list[str]) -> list[list[int]]:
    library = Library.from_str(definition)
    library.encode_special_tokens = True
    return [row.ids for row in library.encode_batch(texts, add_special_tokens=False)]


@pytest.mark.filterwarnings("ignore:back end 'fastokens' is not used")
@pytest.mark.parametrize("name", NAMES)
def test_every_back_end_gives_the_ids_of_the_library_with_special_spellings_as_ordinary_text(name: str, tmp_path: Path) -> None:
    definition = definition_of(name)
    texts = adversarial(definition)
    right, special = of_library(definition, texts), special_ids(definition)
    for backend in ("auto", "fastokens", "tokenizers"):
        ids = load(definition, tmp_path / "d", backend).encode(texts)
        for i, text in enumerate(texts):
            row = ids[i].tolist()
            assert not special & set(row), (backend, text)
            if not special & set(right[i]) and not any(name in text for name in UNKNOWN):  # else the model itself finds one
                assert row == right[i], (backend, text)


def test_added_tokens_keep_their_ids_beside_special_ones(tmp_path: Path) -> None:
    definition = definition_of(BYTE_LEVEL)
    ids = {token["content"]: token["id"] for token in json.loads(definition)["added_tokens"]}
    for backend in ("auto", "tokenizers"):
        row = load(definition, tmp_path / "d", backend).encode(["a<tool_call></s>"]).values.tolist()
        assert row[1] == ids["<tool_call>"]
        assert ids["</s>"] not in row


@pytest.mark.filterwarnings("ignore:back end 'fastokens' is not used")
@pytest.mark.parametrize("name", ["BPE, Prepend", "Unigram, Metaspace, NFKC", "BPE that ignores merges", "WordLevel"])
@pytest.mark.parametrize("text", ["</s>", "say</s>now", "say </s> now", " </s>"])
def test_no_model_gives_a_control_token_for_its_spelling(name: str, text: str, tmp_path: Path) -> None:
    tokenizer = load(definition_of(name), tmp_path / "d")
    row = tokenizer.encode([text]).values.tolist()
    assert row
    assert tokenizer.eos_id is not None
    assert tokenizer.eos_id not in row


@pytest.mark.filterwarnings("ignore:back end 'fastokens' is not used")
def test_a_special_token_that_only_the_post_processor_names_is_no_word_either(tmp_path: Path) -> None:
    tokenizer = load(definition_of("WordLevel, special words of the post-processor"), tmp_path / "d")
    assert tokenizer.encode(["say </s> [CLS] now <tool_call>"]).values.tolist() == [2, 0, 0, 3, 6]


@needs_fastokens
@pytest.mark.parametrize("name", ["BPE, Metaspace always", "WordPiece, Bert", "Unigram, Metaspace, NFKC", "BPE, Prepend"])
def test_where_the_fast_back_end_is_not_exact_the_reference_is_taken_and_said_once(name: str, tmp_path: Path) -> None:
    proof.warned.clear()
    definition = definition_of(name)
    tokenizer = load(definition, tmp_path / "d")
    with pytest.warns(UserWarning, match="'fastokens' is not used for this tokenizer: it (refuses|gives)"):
        assert tokenizer.backend.name == "tokenizers"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load(definition, tmp_path / "e", "fastokens").backend.name == "tokenizers"


@needs_fastokens
@pytest.mark.parametrize("name", ["BPE, ByteLevel", BYTE_LEVEL, "BPE, Split, NFC"])
def test_the_fast_back_end_is_used_where_it_is_exact(name: str, tmp_path: Path) -> None:
    assert load(definition_of(name), tmp_path / "d").backend.name == "fastokens"


def test_a_proof_is_kept_by_the_definitions_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    definition = definition_of(BYTE_LEVEL)
    first = load(definition, tmp_path / "d").proof
    assert len(list((tmp_path / "cache").rglob("*.json"))) == 1
    proof.prove.cache_clear()
    monkeypatch.setattr(proof, "compare", lambda definition: pytest.fail("compared again"))
    assert load(definition, tmp_path / "d").proof == first


def test_a_torn_proof_is_made_again_and_one_that_cannot_be_kept_is_used(tmp_path: Path) -> None:
    definition = definition_of(BYTE_LEVEL)
    first = load(definition, tmp_path / "d").proof
    (file,) = (tmp_path / "cache").rglob("*.json")
    file.write_text('{"ids_sha256": "')
    proof.prove.cache_clear()
    assert load(definition, tmp_path / "d").proof == first
    file.unlink()
    file.mkdir()
    proof.prove.cache_clear()
    assert load(definition, tmp_path / "d").proof == first


def test_the_ids_fingerprint_is_the_same_each_time_and_another_where_ids_differ(tmp_path: Path) -> None:
    definition = definition_of("WordLevel")  # its special words get new random names inside each time
    loaded = json.loads(definition)
    one, two = proof.compare(definition), proof.compare(definition)
    assert one == two
    loaded["model"]["vocab"] |= {"say": 3, "now": 2}
    assert proof.compare(json.dumps(loaded)).ids_sha256 != one.ids_sha256


def test_what_is_proven_travels_with_a_tokenizer(tmp_path: Path) -> None:
    tokenizer = load(definition_of(BYTE_LEVEL), tmp_path / "d")
    proven = tokenizer.proof
    assert vars(pickle.loads(pickle.dumps(tokenizer)))["proof"] == proven
    assert load_tokenizer("bytes").proof is None


def test_a_state_is_refused_where_the_same_definition_gives_other_ids(tmp_path: Path) -> None:
    def build(tokenizer: Tokenizer) -> Pipeline:
        dataset = Dataset.from_dict("d", {"s": InMemoryShard([{"text": "say now"}] * 8)})
        pipeline = Pipeline(StaticMixtureWorkSource([dataset], shuffle_shards=False)).options(runner="inline")
        return pipeline.tokenize(tokenizer, field="text", special_tokens="none").batch(1)

    tokenizer = load(definition_of(BYTE_LEVEL), tmp_path / "d")
    assert tokenizer.proof is not None
    state = build(tokenizer).checkpoint()
    build(load(tokenizer.definition, tmp_path / "e", "tokenizers")).restore(state)  # the back end is a performance setting
    other = dataclasses.replace(tokenizer)
    vars(other)["proof"] = dataclasses.replace(tokenizer.proof, ids_sha256="0" * 64)  # as another version of the library
    with pytest.raises(StateError, match="token_ids: saved"):
        build(other).restore(state)
