"""Export to and start from Hugging Face's layout."""

from __future__ import annotations

import json

import pytest
import torch

from tests.train.ranks import on_ranks
from tests.train.synthetic import VOCAB, spec
from tests.train.test_checkpoint import train_and_save
from tests.train.training import run_steps
from zephon.errors import ConfigError, StateError
from zephon.run.directory import RunDir
from zephon.run.specs import write_spec
from zephon.train.hf import export, hf_name, start_from
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
    start_from(model, str(out))
    again = spec(model__tie_embeddings=some.model.tie_embeddings, model__init_from=str(out), trainer__parallel="fsdp")
    found = on_ranks(run_steps, 2, again, str(tmp_path), 0)
    assert all((p.detach().numpy() == found[0]["weights"][name]).all() for name, p in model.named_parameters())


def test_hugging_face_computes_the_same_logits(exported):
    transformers = pytest.importorskip("transformers")
    out, some = exported
    theirs = transformers.LlamaForCausalLM.from_pretrained(out, attn_implementation="eager")
    ours = Decoder(some.model, VOCAB)
    start_from(ours, str(out))
    ids = torch.arange(16)[None] % VOCAB
    with torch.no_grad():
        torch.testing.assert_close(theirs(ids).logits, ours(ids), atol=1e-5, rtol=1e-4)


def test_weights_of_another_shape_are_refused_by_name(exported):
    out, _ = exported
    with pytest.raises(ConfigError, match=r"model\.embed_tokens\.weight of shape \(61, 32\) instead of \(62, 32\)"):
        start_from(Decoder(spec().model, 62), str(out))


def test_a_folder_without_the_weights_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"has no model\."):
        start_from(Decoder(spec().model, VOCAB), str(tmp_path))


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
