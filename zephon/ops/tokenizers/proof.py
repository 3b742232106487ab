"""Which back end may encode a definition: the fast one is proven by parity with the reference, once, and the proof is kept.

The fast back end is used only where it gives the reference's ids for each text of `adversarial`. The outcome and the SHA-256
of the reference's ids lie in ``$XDG_CACHE_HOME/zephon/tokenizers``, by a hash of the definition and both libraries' versions.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from zephon.ops.tokenizers import adversarial
from zephon.ops.tokenizers.backends import Backend, Unencodable, make_backend
from zephon.run.installed import installed_version
from zephon.types import Ragged

FAST, REFERENCE = "fastokens", "tokenizers"
warned: set[str] = set()
"""Fingerprints of the tokenizers whose fallback this process has warned of."""


@dataclasses.dataclass(frozen=True)
class Proof:
    """What the comparison gave.

    Args:
        ids_sha256: of the reference's ids for the adversarial text of the definition.
        exact: the fast back end gives the same.
        why: why it is not used otherwise.
    """

    ids_sha256: str
    exact: bool
    why: str


@functools.lru_cache(maxsize=8)
def prove(definition: str) -> Proof:
    """From the cache, or by a comparison of a second or so."""
    versions = {library: installed_version(library) for library in (FAST, REFERENCE)}
    key = json.dumps([hashlib.sha256(definition.encode()).hexdigest(), versions, adversarial.VERSION])
    file = _directory() / f"{hashlib.sha256(key.encode()).hexdigest()}.json"
    kept = _read(file)
    if kept is None:
        kept = compare(definition)
        _write(file, kept)
    return kept


def compare(definition: str) -> Proof:
    """Runs both back ends over the adversarial text."""
    texts, refused, right = _reference_ids(adversarial.adversarial(definition), make_backend(REFERENCE, definition))
    digest = hashlib.sha256(right.offsets.astype("<i8").tobytes() + right.values.astype("<u4").tobytes()).hexdigest()
    if installed_version(FAST) is None:
        return Proof(digest, False, "it is not installed")
    try:
        fast = make_backend(FAST, definition)
        why = _difference(fast, texts, right) or _taken(fast, refused)
    except Exception as error:  # noqa: BLE001 - whatever a foreign library raises about a definition that it does not know
        why = f"it refuses the definition: {error}"
    return Proof(digest, not why, why)


def choose(name: str, proof: Proof) -> str:
    """The back end to use where ``name`` was asked for; a fallback to the reference is warned of once a process."""
    if name not in ("auto", FAST) or proof.exact:
        return FAST if name == "auto" else name
    if proof.ids_sha256 not in warned and (name == FAST or installed_version(FAST) is not None):
        warned.add(proof.ids_sha256)
        warnings.warn(
            f"back end {FAST!r} is not used for this tokenizer: {proof.why}; {REFERENCE!r} encodes it, which is slower",
            stacklevel=2,
        )
    return REFERENCE


def _reference_ids(texts: list[str], reference: Backend) -> tuple[list[str], list[str], Ragged]:
    """(texts that have ids, those that the definition has none for, the ids)."""
    refused: list[str] = []
    while True:
        try:
            return texts, refused, reference.encode(texts)
        except Unencodable:
            pass
        # One by one from here on: a definition without an unknown token refuses many of them.
        taken = []
        for text in texts:
            try:
                reference.encode([text])
                taken.append(text)
            except Unencodable:
                refused.append(text)
        texts = taken


def _taken(fast: Backend, refused: Sequence[str]) -> str:
    """Which of the texts that the reference refuses the fast back end does not, or nothing."""
    for text in refused:
        try:
            fast.encode([text])
        except Unencodable:
            continue
        return f"it has ids for {text[:40]!r}, which {REFERENCE!r} refuses"
    return ""


def _difference(fast: Backend, texts: Sequence[str], right: Ragged) -> str:
    """Where the fast back end differs, or nothing."""
    whole = fast.encode(list(texts))
    for i, text in enumerate(texts):
        if not np.array_equal(whole[i], right[i]):
            return f"it gives {_few(whole[i])} for {text[:40]!r}, not {_few(right[i])}"
    around = fast.encode_between(list(texts), 1, 2)
    for i, text in enumerate(texts if around is not None else ()):
        assert around is not None
        if around[i].tolist() != [1, *right[i].tolist(), 2]:
            return f"it puts special tokens otherwise around {text[:40]!r}"
    return ""


def _few(ids: np.ndarray) -> str:
    return f"{ids[:8].tolist()}{' and so on' if len(ids) > 8 else ''}"


def _directory() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(home) / "zephon" / "tokenizers"


def _read(file: Path) -> Proof | None:
    try:
        return Proof(**json.loads(file.read_text("utf-8")))
    except (OSError, ValueError, TypeError):  # none, or torn
        return None


def _write(file: Path, proof: Proof) -> None:
    """As a whole, where there is room and a right to write; it is only a cache."""
    import tempfile

    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False, encoding="utf-8") as scratch:
            json.dump(dataclasses.asdict(proof), scratch)
        os.replace(scratch.name, file)
    except OSError:
        return
