"""A text on which back ends that differ from each other are likely to show it; for one definition always the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence

VERSION = 1
"""Of this text: a proof or a fingerprint of ids holds for one version."""
_MOST_ADDED = 256
_PIECES = 2048
_RANDOM = 256

_PLAIN = (
    "",
    " ",
    "  ",
    "\n",
    "\t\n \r\n\n\n  x",
    "Hello world",
    " Hello  world ",
    "   leading and trailing   ",
    "don't I'LL we've 's 'S ’s it''s",
    "def f(a):\n    return a  # comment\n\n\n\tpass\n",
    "0 1 12 123 1234 12345 1234567890 3.14 1,000,000 ²³ ½ Ⅷ ١٢٣ 一二三",
    "e\u0301 e\u0301\u0302\u0303 \u0301 a\u0308o\u0308 \u1112\u1161\u11ab \ufb01 \u212b \u00c5 A\u030a \u1e9b\u0323",
    "\U0001f600 \U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea \u2764\ufe0f \U0001f44d\U0001f3fd",
    "日本語のテキスト。中文，混合English文字 한국어 ไทย हिन्दी العربية עברית Ελληνικά Русский",
    "nul \x00 in \x00\x00 text\x00",
    "\ufeff\u200b\u00ad\u2028\u2029\u0085\x7f\x1b\ufffd\ufdd0\uffff\U0010ffff",
    "\u00a0\u2003\u3000x\u00a0y\u3000z",
    "İSTANBUL ıi ß ẞ ŒUVRE ǅ ΌΣΟΣ",
    "▁ ▁▁ ▁a a▁b Ġ Ġa ## ##ing <0x0A> <0x00> <0xFF>",
    "https://example.org/a?b=c&d=%20#e user@example.org $x_1 a-b--c---d",
    "!!! ... ?!?! ((())) [[]] {{}} <<>> </> \\\\ //// ==== ~~~~ ````",
    "a" * 1000,
    " " * 300,
    "\n" * 100,
    "ab" * 300,
    "-" * 257,
    "日" * 200,
    "\U0001f600" * 100,
    "9" * 200,
    "word " * 200,
    "pneumonoultramicroscopicsilicovolcanoconiosis" * 5,
)
_ALPHABET = (
    *"abeinorstABEST019 \n\t.,'-_<>/|[]\"    é日本한яع▁Ġß\x00\u00a0\u3000\u200d\ufeff\ufe0f\U0001f600",
    *("  ", "e\u0301", "'s", "ing", "the", "##"),
)


def adversarial(definition: str) -> list[str]:
    """Texts for this definition: fixed ones, its added tokens among neighbours, its pieces, a random mix."""
    loaded = json.loads(definition)
    added = [token["content"] for token in loaded.get("added_tokens") or []]
    vocab = loaded["model"]["vocab"]
    pieces = (
        [piece for piece, _ in vocab] if isinstance(vocab, list) else sorted(vocab, key=lambda piece: (vocab[piece], piece))
    )
    texts = [*_PLAIN, *_with(_spread(added, _MOST_ADDED)), *_of_pieces(_spread(pieces, _PIECES)), *_mixed(added[:_MOST_ADDED])]
    return [text for text in texts if _is_text(text)]


def _with(added: Sequence[str]) -> Iterator[str]:
    for i, token in enumerate(added):
        other = added[i - 1]
        yield from (token, f" {token} ", f"say{token}now", f"say {token}  now", f"{token}{token}{other}", f"\n{token}\n.")
        yield from (f"{token[:-1]} {token[1:]}", token.upper() + token.lower(), f"é{token}\u0301{token}1{token}_{token}'s")


def _of_pieces(pieces: Sequence[str]) -> Iterator[str]:
    spelled = [piece.replace("Ġ", " ").replace("▁", " ").replace("Ċ", "\n").removeprefix("##") for piece in pieces]
    for at in range(0, len(spelled), 16):
        yield "".join(spelled[at : at + 16])
        yield " ".join(spelled[at : at + 16])


def _mixed(added: Sequence[str]) -> Iterator[str]:
    symbols = [*_ALPHABET, *added[:16]]
    for i in range(_RANDOM):
        drawn = hashlib.shake_256(f"zephon {i}".encode()).digest(2 + 2 * 48)
        length = 1 + drawn[0] % 48
        yield "".join(symbols[int.from_bytes(drawn[2 * j : 2 * j + 2]) % len(symbols)] for j in range(1, 1 + length))


def _spread(values: Sequence[str], most: int) -> list[str]:
    """At most so many of them, evenly from first to last."""
    count = min(len(values), most)
    return [values[i * len(values) // count] for i in range(count)]


def _is_text(text: str) -> bool:
    """No lone surrogate: neither library takes one."""
    return text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text)
