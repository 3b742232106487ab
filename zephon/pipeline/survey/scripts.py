"""Which scripts a text is written in, by the blocks of its letters."""

from __future__ import annotations

import numpy as np

from zephon.types import IntArray

# The first code point of each stretch, and the script of its letters; "" are signs, digits and all that is not looked at.
_STRETCHES = [
    (0x0, ""),
    (ord("A"), "Latin"),
    (ord("["), ""),
    (ord("a"), "Latin"),
    (ord("{"), ""),
    (0xC0, "Latin"),
    (0x250, ""),
    (0x370, "Greek"),
    (0x400, "Cyrillic"),
    (0x530, "Armenian"),
    (0x590, "Hebrew"),
    (0x600, "Arabic"),
    (0x700, "other"),
    (0x750, "Arabic"),
    (0x780, "other"),
    (0x900, "Devanagari"),
    (0x980, "Bengali"),
    (0xA00, "Gurmukhi"),
    (0xA80, "Gujarati"),
    (0xB00, "Odia"),
    (0xB80, "Tamil"),
    (0xC00, "Telugu"),
    (0xC80, "Kannada"),
    (0xD00, "Malayalam"),
    (0xD80, "Sinhala"),
    (0xE00, "Thai"),
    (0xE80, "Lao"),
    (0xF00, "Tibetan"),
    (0x1000, "Burmese"),
    (0x10A0, "Georgian"),
    (0x1100, "Hangul"),
    (0x1200, "Ethiopic"),
    (0x13A0, "other"),
    (0x1780, "Khmer"),
    (0x1800, "Mongolian"),
    (0x18B0, "other"),
    (0x1E00, "Latin"),
    (0x1F00, "Greek"),
    (0x2000, ""),
    (0x3040, "Hiragana"),
    (0x30A0, "Katakana"),
    (0x3100, "other"),
    (0x3130, "Hangul"),
    (0x3190, ""),
    (0x3400, "Han"),
    (0x4DC0, ""),
    (0x4E00, "Han"),
    (0xA000, "other"),
    (0xAC00, "Hangul"),
    (0xD800, ""),
    (0xF900, "Han"),
    (0xFB00, "Latin"),
    (0xFB13, "other"),
    (0xFE00, ""),
    (0xFF66, "Katakana"),
    (0xFFA0, "Hangul"),
    (0xFFE0, ""),
    (0x10000, "other"),
    (0x1F000, ""),
    (0x20000, "Han"),
    (0x32000, ""),
]
NAMES = sorted({name for _, name in _STRETCHES if name})
_STARTS = np.array([start for start, _ in _STRETCHES], np.uint32)
_OWNERS = np.array([NAMES.index(name) if name else len(NAMES) for _, name in _STRETCHES], np.int64)


def letters_by_script(text: str) -> IntArray:
    """int64[len(NAMES)]: letters of each script in `NAMES`."""
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
    owners = _OWNERS[np.searchsorted(_STARTS, points, side="right") - 1]
    counts: IntArray = np.bincount(owners, minlength=len(NAMES) + 1)[:-1]
    return counts
