"""tokenize_chat: what is supervised is exactly what the template says, and a message cannot inject a token."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zephon import Dataset, InMemoryShard, Pipeline, SampleBatch, StaticMixtureWorkSource
from zephon.errors import ConfigError, DataError
from zephon.ops.chat import TokenizeChat
from zephon.ops.tokenizers import load_tokenizer
from zephon.types import Columns

TAGS = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]"
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %}"
    "{% else %}{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)
PLAIN = TAGS.replace("{% generation %}", "").replace("{% endgeneration %}", "")
BOS, EOS = 256, 257


def turns(*contents: str) -> list[dict[str, str]]:
    """User and assistant by turns."""
    return [{"role": "assistant" if i % 2 else "user", "content": content} for i, content in enumerate(contents)]


def run(rows: list[dict[str, Any]], tokenizer_id: str = "bytes", **options: Any) -> list[SampleBatch]:
    dataset = Dataset.from_dict("d", {"s": InMemoryShard(rows)})
    pipeline = Pipeline(StaticMixtureWorkSource([dataset], shuffle_within_shard=False, shuffle_shards=False)).options(
        runner="inline", global_batch_size=1
    )
    return list(pipeline.tokenize_chat(tokenizer_id=tokenizer_id, **{"chat_template": TAGS, **options}).batch(1))


def supervised(batch: SampleBatch, mask: str = "loss_mask") -> str:
    """The supervised text; special tokens as < and >."""
    ids, learned = np.asarray(batch.payload["input_ids"])[0], np.asarray(batch.payload[mask])[0]
    assert learned.dtype == np.uint8
    assert ids.shape == learned.shape
    return "".join({BOS: "<", EOS: ">"}.get(t, chr(t % 256)) for t in ids[learned == 1].tolist())


def written(batch: SampleBatch) -> str:
    ids = np.asarray(batch.payload["input_ids"])[0].tolist()
    return "".join({BOS: "<", EOS: ">"}.get(t, chr(t % 256)) for t in ids)


CHAT = turns("hi", "yo", "and?", "no")


@pytest.mark.parametrize("source", ["auto", "generation_tags", "prefix_difference"])
def test_the_assistants_words_are_supervised_and_nothing_else(source: str) -> None:
    for template in (TAGS, PLAIN):
        if source == "generation_tags" and template == PLAIN:
            continue
        (batch,) = run([{"messages": CHAT}], chat_template=template, span_source=source)
        assert written(batch) == "<[user]hi[assistant]yo>[user]and?[assistant]no>"
        assert supervised(batch) == "yo>no>"


@pytest.mark.parametrize("template", [TAGS, PLAIN])
@pytest.mark.parametrize(
    ("scope", "chat", "expected"),
    [
        (None, CHAT, "yo>no>"),
        ("all_assistant", CHAT, "yo>no>"),
        ("last_span", CHAT, "no>"),
        ("after_last_user", [*CHAT, {"role": "assistant", "content": "maybe"}], "no>maybe>"),
        ("after_last_user", CHAT[:2], "yo>"),
    ],
)
def test_the_scope_chooses_among_the_spans(template: str, scope: str | None, chat: Any, expected: str) -> None:
    (batch,) = run([{"messages": chat}], chat_template=template, loss_scope=scope)
    assert supervised(batch) == expected


def test_documents_without_a_supervised_token_are_left_out_counted_and_named() -> None:
    rows = [{"messages": turns("hi")}, {"messages": CHAT}, {"messages": [*CHAT, {"role": "user", "content": "?"}]}]
    batches = run(rows, loss_scope="after_last_user")
    assert len(batches) == 1
    (left,) = batches[0].dropped
    assert (left.reason, [a.row for a in left.addresses]) == ("tokenize_chat: no supervised token", [0, 2])


def test_a_message_cannot_inject_a_special_token() -> None:
    nasty = turns("<|endoftext|>", "fine <|endoftext|> really")
    (batch,) = run([{"messages": nasty}], tokenizer_id="gpt2")
    ids = np.asarray(batch.payload["input_ids"])[0]
    assert ids[0] == ids[-1] == 50256, "BOS and the EOS behind the answer come from the template"
    assert (ids[1:-1] != 50256).all()
    backend = load_tokenizer("gpt2").encode(["fine <|endoftext|> really"]).values
    assert ids[np.asarray(batch.payload["loss_mask"])[0] == 1].tolist() == [*backend.tolist(), 50256]


def test_a_span_is_tokenized_on_its_own_as_at_inference() -> None:
    """Behind '\\n' a second '\\n' would melt into one token if the whole text were tokenized at once."""
    template = TAGS.replace("[{{ m.role }}]", "{{ m.role }}\n")
    (batch,) = run([{"messages": turns("a", "\nb")}], tokenizer_id="gpt2", chat_template=template)
    ids, mask = np.asarray(batch.payload["input_ids"])[0], np.asarray(batch.payload["loss_mask"])[0]
    encode = load_tokenizer("gpt2").encode
    assert ids[mask == 1].tolist() == [*encode(["\nb"]).values.tolist(), 50256]
    assert ids[mask == 0].tolist() == [50256, *encode(["user\naassistant\n"]).values.tolist()]


def test_tools_and_further_variables_reach_the_template() -> None:
    template = "{{ tools | tojson }}|{{ mood }}|" + TAGS
    (batch,) = run(
        [{"messages": CHAT, "functions": [{"name": "f"}]}],
        chat_template=template,
        tools_field="functions",
        chat_template_kwargs={"mood": "calm"},
    )
    assert written(batch).startswith('[{"name": "f"}]|calm|<')
    (without,) = run([{"messages": CHAT}], chat_template=template, chat_template_kwargs={"mood": "calm"})
    assert written(without).startswith("null|calm|<")


def test_without_a_template_the_contents_are_joined_as_they_are() -> None:
    (batch,) = run([{"messages": CHAT}], apply_chat_template=False, chat_template=None)
    assert (written(batch), supervised(batch)) == ("hiyoand?no", "yono")


def test_without_a_template_a_list_of_parts_is_its_text_and_what_is_no_text_is_refused() -> None:
    parts = [{"type": "text", "text": "y"}, "o"]
    chat = [CHAT[0], {"role": "assistant", "content": parts}, {"role": "user", "content": None}]
    (batch,) = run([{"messages": chat}], apply_chat_template=False, chat_template=None)
    assert (written(batch), supervised(batch)) == ("hiyo", "yo")
    for content in (7, {"text": "x"}, [{"type": "image_url", "image_url": "x"}], [{"type": "text", "text": None}]):
        with pytest.raises(DataError, match=r"which is no text|not text"):
            run([{"messages": [CHAT[0], {"role": "assistant", "content": content}]}], apply_chat_template=False)


def test_a_template_that_goes_over_the_parts_of_a_content_gets_them() -> None:
    over = TAGS.replace("{{ m.content }}", "{% for p in m.content %}{{ p.text }}{% endfor %}")
    chat = [{"role": m["role"], "content": [{"type": "text", "text": m["content"]}]} for m in CHAT]
    (with_parts,), (plain,) = run([{"messages": chat}], chat_template=over), run([{"messages": CHAT}])
    assert (written(with_parts), supervised(with_parts)) == (written(plain), supervised(plain))


def test_the_mask_has_the_name_that_is_asked_for_and_long_chats_are_cut() -> None:
    (batch,) = run([{"messages": CHAT}], mask_field_out="learn", max_length=22)
    assert written(batch) == "<[user]hi[assistant]yo>[user]and?[assistant]no>"[:22]
    assert supervised(batch, "learn") == "yo"


def test_packing_keeps_the_mask_beside_the_tokens_and_training_shifts_it() -> None:
    dataset = Dataset.from_dict("d", {"s": InMemoryShard([{"messages": CHAT}] * 3)})
    pipeline = Pipeline(StaticMixtureWorkSource([dataset], shuffle_within_shard=False, shuffle_shards=False)).options(
        runner="inline", global_batch_size=1
    )
    pipeline.tokenize_chat(tokenizer_id="bytes", chat_template=TAGS).pack_flat(64, algorithm="wrap").batch(1)
    for batch in pipeline:
        ids, mask = np.asarray(batch.fields["input_ids"])[0], np.asarray(batch.fields["loss_mask"])[0]
        labels = np.asarray(batch.to_training(return_labels=True)["labels"])[0]
        real = np.arange(1, 64) < batch.used[0]
        assert labels.tolist() == np.where((mask[1:] == 1) & real, ids[1:].astype(int), -100).tolist()


def test_the_tokenizers_own_template_is_used_and_belongs_to_the_fingerprint(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(load_tokenizer("gpt2").definition)
    fingerprints = set()
    for template in (TAGS, TAGS + "!"):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template, "eos_token": "<|endoftext|>"}))
        dataset = Dataset.from_dict("d", {"s": InMemoryShard([{"messages": CHAT}])})
        pipeline = Pipeline(StaticMixtureWorkSource([dataset], shuffle_within_shard=False)).options(runner="inline")
        pipeline.tokenize_chat(tokenizer_id=str(tmp_path)).batch(1)
        fingerprints.add(pipeline.fingerprint)
        (batch,) = pipeline
        assert np.asarray(batch.payload["loss_mask"]).sum() == 4
    assert len(fingerprints) == 2


def configured(folder: Path, config: bytes) -> Any:
    """The op on a GPT-2 definition with this configuration beside it."""
    (folder / "tokenizer.json").write_bytes(b"\xef\xbb\xbf" + load_tokenizer("gpt2").definition.encode())
    (folder / "tokenizer_config.json").write_bytes(config)
    dataset = Dataset.from_dict("d", {"s": InMemoryShard([{"messages": CHAT}])})
    pipeline = Pipeline(StaticMixtureWorkSource([dataset], shuffle_within_shard=False)).options(runner="inline")
    return lambda **options: list(pipeline.tokenize_chat(tokenizer_id=str(folder), **options).batch(1))


def test_of_named_templates_the_default_is_taken_or_the_choices_are_named(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "t" + TAGS}, {"name": "default", "template": TAGS}]
    (default,) = configured(tmp_path, json.dumps({"chat_template": named}).encode())()
    (chosen,) = configured(tmp_path, json.dumps({"chat_template": named}).encode())(chat_template="tool_use")
    assert len(chosen.payload["input_ids"][0]) == len(default.payload["input_ids"][0]) + 1
    named[1]["name"] = "rag"
    with pytest.raises(ConfigError, match="several chat templates") as caught:
        configured(tmp_path, json.dumps({"chat_template": named}).encode())()
    assert caught.value.remedy == "choose one: chat_template= 'tool_use' or 'rag'"


def test_a_configuration_with_a_byte_order_mark_is_read_and_a_broken_one_is_named(tmp_path: Path) -> None:
    good = json.dumps({"chat_template": TAGS}).encode()
    assert len(configured(tmp_path, b"\xef\xbb\xbf" + good)()) == 1
    for broken in (good[:-1], b"[]", b"\xff" + good, b'{"chat_template": [1]}'):
        with pytest.raises(ConfigError, match=r"tokenizer_config\.json cannot be read"):
            configured(tmp_path, broken)()


def test_a_date_that_is_given_stays_and_a_template_that_asks_for_it_is_used() -> None:
    template = "{% if not date is defined %}{% set date = strftime_now('%Y') %}{% endif %}{{ date }}" + TAGS
    (batch,) = run([{"messages": CHAT}], chat_template=template, chat_template_kwargs={"date": "2024"})
    assert written(batch).startswith("2024<")


@pytest.mark.parametrize(
    ("rows", "options", "why"),
    [
        ([{"messages": "hi"}], {}, "not a list of messages"),
        ([{"messages": [{"content": "hi"}]}], {}, "not a list of messages"),
        ([{"text": "hi"}], {}, "no field 'messages'"),
        ([{"messages": turns("a\ufdd0", "b")}], {}, "noncharacter"),
        ([{"messages": CHAT}], {"chat_template": "{{ raise_exception('roles must alternate') }}"}, "roles must alternate"),
        ([{"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}, CHAT[1]]}], {}, "a list of parts"),
        (
            [{"messages": CHAT}],
            {"chat_template": "{{ messages | length }}" + PLAIN},
            "with message 1 the text before it changes",
        ),
    ],
)
def test_a_chat_that_does_not_fit_is_an_error_with_its_address(rows: Any, options: dict[str, Any], why: str) -> None:
    with pytest.raises(DataError, match=why) as caught:
        run(rows, **options)
    assert "row 0" in "".join(caught.value.__notes__)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"chat_template": "{% if %}"}, "is not Jinja"),
        ({"chat_template": None}, "no chat template"),
        ({"chat_template": "{% set day = strftime_now('%d') %}" + TAGS}, r'chat_template_kwargs=\{"day": "26 Jul 2024"\}'),
        ({"chat_template": PLAIN, "span_source": "generation_tags"}, "has no {% generation %}"),
        ({"span_source": "generation_tag"}, "did you mean 'generation_tags'"),
        ({"loss_scope": "last"}, "did you mean 'last_span'"),
    ],
)
def test_what_cannot_work_is_refused_before_any_data_is_read(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        run([{"messages": CHAT}], **options)


def test_rows_without_weight_have_the_fields_of_real_ones() -> None:
    def make(rank: int) -> Pipeline:
        dataset = Dataset.from_dict("d", {"s": InMemoryShard([{"messages": CHAT}] * 40)})
        source = StaticMixtureWorkSource([dataset], shuffle_within_shard=False, exhausted_policy="repeat", chunk_bytes=100)
        place: dict[str, Any] = {"dp_degree": 3, "dp_group_id": rank, "lanes_allow": "uneven"}
        pipeline = Pipeline(source).options(runner="inline", canonical_replicas=2, global_batch_size=4, **place)
        return pipeline.tokenize_chat(tokenizer_id="bytes", chat_template=TAGS).pack_flat(64, algorithm="wrap").batch(1)

    for rank in range(3):
        pipeline = make(rank)
        (step,) = [list(next(pipeline.steps()))]
        pipeline.close()
        assert [batch.real_rows for batch in step] == [[1, 0], [1, 0], [1, 1]][rank]
        for batch in step:
            got = batch.to_training(return_labels=True, return_num_valid_tokens=True, extra_fields=["loss_mask"])
            assert got["loss_mask"].shape == (1, 63)
            assert (got["num_valid_tokens"] > 0) == (batch.real_rows > 0)


def test_an_op_travels_to_another_process_without_its_compiled_template() -> None:
    op = TokenizeChat(tokenizer=load_tokenizer("bytes"), chat_template=TAGS)
    op.check()
    again = pickle.loads(pickle.dumps(op))
    rows = [{"messages": CHAT}]
    columns = Columns(0, np.zeros(1, np.int64), np.zeros(1, np.int64), rows)
    one, other = op.stage()(columns).fields["input_ids"], again.stage()(columns).fields["input_ids"]
    assert one[0].tolist() == other[0].tolist()


def test_a_template_cannot_reach_into_python() -> None:
    (batch,) = run([{"messages": CHAT}], chat_template="{{ messages.__class__.__mro__ }}" + TAGS)
    assert written(batch).startswith("<[user]")
    with pytest.raises(DataError, match="SecurityError"):
        run([{"messages": CHAT}], chat_template="{{ messages.append(1) }}" + TAGS)
