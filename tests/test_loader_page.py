"""docs/loader.md: its drawing is what the pipeline does, and stays so."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

from examples.order_picture import FLUSH, SAVED_AFTER, cursors, picture, pipeline

DOCS = Path(__file__).resolve().parent.parent / "docs"


def test_the_drawing_of_the_page_is_what_its_pipeline_does() -> None:
    drawn = (DOCS / "loader_order.svg").read_text("utf-8")
    assert drawn == picture(), "python -m examples.order_picture > docs/loader_order.svg"
    assert ElementTree.fromstring(drawn).tag.endswith("svg")
    assert "(loader_order.svg)" in (DOCS / "loader.md").read_text("utf-8")


def test_the_cursor_in_the_drawing_says_what_is_carried_over_a_sentinel() -> None:
    saved = [cursor for step, _, cursor in cursors(pipeline()) if step == SAVED_AFTER][-1]
    assert (saved.position, saved.delivered) == (FLUSH, 2)
    assert saved.carried_tokens == 3 * 64 % 40
