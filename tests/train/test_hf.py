"""Export to and start from Hugging Face's layout."""

from __future__ import annotations

import dataclasses
import json
import shutil

import pytest
import torch

from tests.train.ranks import on_ranks
from tests.train.synthetic import VOCAB, spec
from tests.train.test_checkpoint import train_and_save
from tests.train.training import run_steps
from zephon.errors import ConfigError, StateError
from zephon.ops.tokenizers import load_tokenizer
from zephon.run.directory import RunDir
from zephon.run.specs import write_spec
from zephon.train.hf import _write_tokenizer, export, hf_config, hf_name, start_from
from zephon.train.model import Decoder


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def exported(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    some = spec(model__tie_embeddings=request.param)
    on_ranks(train_and_save, 2, some, str(folder), [2])
    write_spec(RunDir(str(folder)), 1, some)
    return export(RunDir(str(folder)), folder / "hf"), some


def test_a_run_started_from_the_export_begins_with_its_weights_at_any_sharding(exported, tmp_path):
    out, some = exported
    model = Decoder(some.model, VOCAB)
    start_from(model, str(out), some.model)
    again = spec(model__tie_embeddings=some.model.tie_embeddings, model__init_from=str(out), trainer__parallel="fsdp")
    found = on_ranks(run_steps, 2, again, str(tmp_path), 0)
    assert all((p.detach().numpy() == found[0]["weights"][name]).all() for name, p in model.named_parameters())


def test_hugging_face_computes_the_same_logits(exported):
    transformers = pytest.importorskip("transformers")
    out, some = exported
    theirs = transformers.LlamaForCausalLM.from_pretrained(out, attn_implementation="eager")
    ours = Decoder(some.model, VOCAB)
    start_from(ours, str(out), some.model)
    ids = torch.arange(16)[None] % VOCAB
    with torch.no_grad():
        torch.testing.assert_close(theirs(ids).logits, ours(ids), atol=1e-5, rtol=1e-4)


def test_weights_of_another_shape_are_refused_by_name(exported):
    out, some = exported
    with pytest.raises(ConfigError, match=r"model\.embed_tokens\.weight of shape \(61, 32\) instead of \(62, 32\)"):
        start_from(Decoder(some.model, 62), str(out), some.model)


def test_a_folder_without_the_weights_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"has no model\."):
        start_from(Decoder(spec().model, VOCAB), str(tmp_path), spec().model)


def test_a_run_without_a_checkpoint_is_not_exported(tmp_path):
    with pytest.raises(StateError, match="no complete checkpoint"):
        export(RunDir(str(tmp_path)), tmp_path / "out")


def test_the_config_names_the_sizes(exported):
    out, some = exported
    config = json.loads((out / "config.json").read_text())
    assert (config["hidden_size"], config["num_key_value_heads"], config["vocab_size"]) == (32, 2, VOCAB)
    assert config["tie_word_embeddings"] == some.model.tie_embeddings


def test_no_two_parameters_share_a_name_there():
    names = [hf_name(name) for name, _ in Decoder(spec(model__tie_embeddings=False).model, VOCAB).named_parameters()]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("layers", 1, r"has model\.layers\.1\.\S+, for which the model has no place"),
        ("rope_theta", 500_000.0, "rope_theta=10000.0 in its config.json, and this one has 500000.0"),
        ("norm_eps", 1e-6, "rms_norm_eps=1e-05 in its config.json, and this one has 1e-06"),
    ],
)
def test_weights_of_a_model_that_computes_something_else_are_refused(exported, field, value, words):
    out, some = exported
    other = dataclasses.replace(some.model, **{field: value})
    with pytest.raises(ConfigError, match=words):
        start_from(Decoder(other, VOCAB), str(out), other)


def test_a_scaled_rotation_in_either_spelling_is_refused(exported, tmp_path):
    out, some = exported
    shutil.copytree(out, tmp_path / "scaled")
    config = json.loads((out / "config.json").read_text())
    for key, kind in (("rope_scaling", "type"), ("rope_parameters", "rope_type")):
        (tmp_path / "scaled" / "config.json").write_text(json.dumps({**config, key: {kind: "llama3", "factor": 8.0}}))
        with pytest.raises(ConfigError, match="rope_type='llama3'"):
            start_from(Decoder(some.model, VOCAB), str(tmp_path / "scaled"), some.model)


def test_an_export_has_the_ids_with_which_generation_ends_and_the_tokenizer(tmp_path):
    some = spec(tokenizer__id="gpt2")
    (tmp_path / "out").mkdir()
    tokenizer = load_tokenizer("gpt2")
    config = hf_config(some.model, vocab_size=50304, length=16, tokenizer=tokenizer)
    assert (config["bos_token_id"], config["eos_token_id"]) == (50256, 50256)
    _write_tokenizer(tokenizer, tmp_path / "out")
    tokenizers = pytest.importorskip("tokenizers")
    written = tokenizers.Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    assert written.encode("Hello world").ids == load_tokenizer("gpt2").encode(["Hello world"]).values.tolist()
    settings = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert settings["eos_token"] == settings["bos_token"] == "<|endoftext|>"
    assert load_tokenizer(str(tmp_path / "out")).eos_id == 50256


def test_the_files_of_an_export_are_all_there(exported):
    out, _ = exported
    assert {path.name for path in out.iterdir()} >= {"config.json", "generation_config.json", "model.safetensors"}
