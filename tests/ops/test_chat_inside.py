"""Chats with tokenizers that put a space before every text: each part has the ids that it has inside the whole text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer as Library

from tests.ops.definitions import definition_of
from tests.ops.test_chat import run, turns
from zephon.errors import DataError

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}"
    "{% generation %} {{ m.content }}{{ eos_token }}{% endgeneration %}{% else %}({{ m.content }}){% endif %}{% endfor %}"
)
PREFIXING = ["BPE, Prepend", "BPE, Metaspace always", "BPE, Metaspace first", "Unigram, Metaspace, NFKC"]
pytestmark = pytest.mark.filterwarnings("ignore:back end 'fastokens' is not used")


def saved(name: str, directory: Path) -> tuple[str, Library]:
    definition = definition_of(name)
    (directory / "tokenizer.json").write_text(definition, "utf-8")
    return str(directory), Library.from_str(definition)


@pytest.mark.parametrize("name", [*PREFIXING, "BPE, ByteLevel, added tokens", "BPE, ByteLevel with a prefix space"])
def test_a_chats_ids_are_those_of_the_whole_text(name: str, tmp_path: Path) -> None:
    path, library = saved(name, tmp_path)
    (batch,) = run([{"messages": turns("say now", "hello world", "the fox", "jumps over")}], path, chat_template=TEMPLATE)
    ids, mask = (np.asarray(batch.payload[field])[0].tolist() for field in ("input_ids", "loss_mask"))
    whole = "<s>(say now) hello world</s>(the fox) jumps over</s>"
    assert ids == library.encode(whole, add_special_tokens=False).ids
    ends = [i for i, token in enumerate(ids) if token == library.token_to_id("</s>")]
    assert [mask[i] for i in ends] == [1, 1]
    prompt = library.encode("<s>(say now)", add_special_tokens=False).ids
    assert mask[: len(prompt)] == [0] * len(prompt)
    assert mask[len(prompt)] == 1


@pytest.mark.parametrize("name", PREFIXING)
def test_no_supervised_stretch_begins_with_a_space_that_the_text_does_not_have(name: str, tmp_path: Path) -> None:
    path, library = saved(name, tmp_path)
    template = TEMPLATE.replace("{% generation %} ", "{% generation %}")
    (batch,) = run([{"messages": turns("a", "12345")}], path, chat_template=template)
    ids = np.asarray(batch.payload["input_ids"])[0].tolist()
    assert ids == library.encode("<s>(a)12345</s>", add_special_tokens=False).ids


def test_a_document_whose_tokens_lie_across_a_border_is_refused_with_its_address(tmp_path: Path) -> None:
    path, _ = saved("BPE, Prepend", tmp_path)
    template = TEMPLATE.replace("(", "").replace(")", "").replace("{% generation %} ", "{% generation %}")
    with pytest.raises(DataError, match=r"(?s)a token lies across the border between 'say hel' and 'lo'.*shard 's', row 0"):
        run([{"messages": turns("say hel", "lo")}], path, chat_template=template)
