from __future__ import annotations

import io
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from rich.console import Console

from zephon.report.legs import legs, rows, sentence, table
from zephon.report.picture import loss_picture
from zephon.run.ledger import Ledger


def write(path: Path, sizes: list[int], *, changed: int | None = None) -> str:
    with Ledger(str(path)) as ledger:
        for step, size in enumerate(sizes):
            digest = bytes([step, step == changed]) * 16
            ledger.append(step=step, digest=digest, lanes=[digest], world_size=size, loss=3.0 - step / 10)
    return str(path)


def test_legs_that_agree_are_said_to_agree(tmp_path: Path) -> None:
    found = rows(write(tmp_path / "run", [4] * 7 + [2] * 3 + [1] * 2), write(tmp_path / "reference", [1] * 12))
    same, words = sentence(found)
    assert same
    assert "4 -> 2 -> 1, every one of 12 steps" in words
    assert [len(leg) for leg in legs(found)] == [7, 3, 2]
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(table(found))
    text = console.export_text()
    assert "3 of 3 more" in text
    assert "NO" not in text


def test_a_step_that_differs_is_named_and_a_missing_reference_is_no_agreement(tmp_path: Path) -> None:
    found = rows(write(tmp_path / "run", [4, 4, 2], changed=1), write(tmp_path / "reference", [1] * 3))
    assert sentence(found) == (
        False,
        "NO: at world sizes 4 -> 2, step 1 is the first of 1 whose global batch differs.",
    )
    found = rows(str(tmp_path / "run"), write(tmp_path / "short", [1]))
    assert not sentence(found)[0]
    assert not sentence([])[0]


def test_the_picture_is_well_formed_and_shows_each_leg(tmp_path: Path) -> None:
    found = rows(write(tmp_path / "run", [4] * 3 + [2] * 3), write(tmp_path / "reference", [1] * 6))
    root = ElementTree.fromstring(loss_picture(found))
    lines = [element for element in root.iter() if element.tag.endswith("polyline")]
    assert len(lines) == 3
    texts = [element.text or "" for element in root.iter() if element.tag.endswith("text")]
    assert any("from step 3: 2 ranks" in text for text in texts)
