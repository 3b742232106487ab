"""Weights to and from Hugging Face's Llama layout: ``config.json``, ``*.safetensors``, and the tokenizer's own files.

    embed.weight                         model.embed_tokens.weight
    layers.0.attention.query.weight      model.layers.0.self_attn.q_proj.weight       (key, value, out: k, v, o)
    layers.0.feed_forward.gate.weight    model.layers.0.mlp.gate_proj.weight          (up, down)
    layers.0.attention_norm.weight       model.layers.0.input_layernorm.weight
    norm.weight   output.weight          model.norm.weight   lm_head.weight

Both sides rotate the same halves of each head, so matrices are copied as they are.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from torch import nn

from zephon.errors import ConfigError, not_installed
from zephon.ops.tokenizers import Tokenizer, load_tokenizer
from zephon.run.directory import RunDir
from zephon.run.specs import newest_spec
from zephon.spec.experiment import ModelSpec
from zephon.train.model import assign, hidden_dim
from zephon.train.weights import read_weights
from zephon.types import Json

_DERIVED = ".rotary_emb.inv_freq"  # older files hold what follows from rope_theta
_COMPARED = (
    "model_type",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "rms_norm_eps",
    "rope_theta",
    "tie_word_embeddings",
    "hidden_act",
    "attention_bias",
    "mlp_bias",
)
_PARTS = (
    ("attention.query.", "self_attn.q_proj."),
    ("attention.key.", "self_attn.k_proj."),
    ("attention.value.", "self_attn.v_proj."),
    ("attention.out.", "self_attn.o_proj."),
    ("feed_forward.", "mlp."),
    ("gate.", "gate_proj."),
    ("up.", "up_proj."),
    ("down.", "down_proj."),
    ("attention_norm.", "input_layernorm."),
    ("feed_forward_norm.", "post_attention_layernorm."),
)


def hf_name(name: str) -> str:
    """The Llama layout's name of one of our parameters.

    >>> hf_name("layers.3.feed_forward.down.weight")
    'model.layers.3.mlp.down_proj.weight'
    """
    if name == "output.weight":
        return "lm_head.weight"
    if not name.startswith("layers."):
        return "model." + name.replace("embed.", "embed_tokens.")
    for ours, theirs in _PARTS:
        name = name.replace(f".{ours}", f".{theirs}")
    return "model." + name


def hf_config(spec: ModelSpec, *, vocab_size: int, length: int, tokenizer: Tokenizer | None = None) -> Json:
    """The ``config.json`` that Hugging Face builds the same model from; generation begins and ends with the tokenizer's ids."""
    return {
        "bos_token_id": _within(tokenizer.bos_id, vocab_size) if tokenizer else None,
        "eos_token_id": _within(tokenizer.eos_id, vocab_size) if tokenizer else None,
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": spec.dim,
        "intermediate_size": hidden_dim(spec),
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.kv_heads or spec.heads,
        "head_dim": spec.dim // spec.heads,
        "vocab_size": vocab_size,
        "max_position_embeddings": length,
        "rms_norm_eps": spec.norm_eps,
        "rope_theta": spec.rope_theta,
        "tie_word_embeddings": spec.tie_embeddings,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "dtype": "float32",
    }


def export(run: RunDir, out: Path, *, step: int | None = None) -> Path:
    """Writes the weights of a run's checkpoint (by default the newest) for Hugging Face; one process, on CPU.

    Raises:
        StateError: there is no complete checkpoint of that step.
    """
    try:
        from safetensors.torch import save_file
    except ImportError as error:
        raise not_installed("writing weights for Hugging Face", "safetensors", "hf") from error
    _, tensors = read_weights(run, step=step)
    spec = newest_spec(run)
    out.mkdir(parents=True, exist_ok=True)
    save_file({hf_name(name): tensor for name, tensor in tensors.items()}, out / "model.safetensors", {"format": "pt"})
    vocab_size = len(tensors["embed.weight"])
    tokenizer = load_tokenizer(spec.tokenizer.id, backend=spec.tokenizer.backend)
    config = hf_config(spec.model, vocab_size=vocab_size, length=spec.pipeline.context_length, tokenizer=tokenizer)
    _write(out / "config.json", config)
    _write(out / "generation_config.json", {name: config[name] for name in ("bos_token_id", "eos_token_id")})
    _write_tokenizer(tokenizer, out)
    return out


def _write_tokenizer(tokenizer: Tokenizer, out: Path) -> None:
    """The files that Hugging Face's fast tokenizers read; bytes as tokens have none."""
    if not tokenizer.definition:
        return
    (out / "tokenizer.json").write_text(tokenizer.definition + "\n", encoding="utf-8")
    loaded = json.loads(tokenizer.definition)
    vocab = loaded["model"]["vocab"]
    pairs = vocab.items() if isinstance(vocab, dict) else ((text, i) for i, (text, _) in enumerate(vocab))
    texts: dict[int | None, str] = {i: text for text, i in pairs}
    texts |= {token["id"]: token["content"] for token in loaded.get("added_tokens", [])}
    settings = {"bos_token": texts.get(tokenizer.bos_id), "eos_token": texts.get(tokenizer.eos_id)}
    settings |= {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": tokenizer.chat_template}
    _write(out / "tokenizer_config.json", {name: value for name, value in settings.items() if value is not None})


def _write(path: Path, data: Json) -> None:
    path.write_text(json.dumps(data, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")


def _within(token: int | None, vocab_size: int) -> int | None:
    return token if token is not None and token < vocab_size else None


def start_from(module: nn.Module, folder: str, spec: ModelSpec) -> None:
    """Fills every parameter, whole or sharded, from a folder (or one file) of safetensors in the Llama layout.

    Raises:
        ConfigError: the folder is not there, lacks a tensor, has one of another shape or one that the model has no place for,
            or its config.json describes another model.
    """
    try:
        from safetensors import safe_open
    except ImportError as error:
        raise not_installed("model.init_from", "safetensors", "hf") from error
    path = Path(folder)
    files = [path] if path.is_file() else sorted(path.glob("*.safetensors"))
    file_of: dict[str, safe_open] = {}
    for file in files:
        opened = safe_open(file, "pt")
        file_of.update(dict.fromkeys(opened.keys(), opened))  # type: ignore[no-untyped-call]
    wanted = {name: hf_name(name) for name, _ in module.named_parameters()}
    missing = sorted(theirs for theirs in wanted.values() if theirs not in file_of)
    if missing:
        raise _unusable(folder, f"has no {missing[0]} ({len(missing)} of {len(wanted)} tensors are missing)")
    tied = {hf_name("output.weight")} if spec.tie_embeddings else set()
    surplus = sorted(name for name in file_of.keys() - set(wanted.values()) - tied if not name.endswith(_DERIVED))
    if surplus:
        raise _unusable(folder, f"has {surplus[0]}, for which the model has no place ({len(surplus)} such tensors)")
    if (path / "config.json").is_file():
        _check_config(folder, json.loads((path / "config.json").read_bytes()), spec)
    for name, parameter in module.named_parameters():
        full = file_of[wanted[name]].get_tensor(wanted[name])  # type: ignore[no-untyped-call]
        if full.shape != parameter.shape:
            raise _unusable(folder, f"has {wanted[name]} of shape {tuple(full.shape)} instead of {tuple(parameter.shape)}")
        assign(parameter, full.float())


def _check_config(folder: str, theirs: Json, spec: ModelSpec) -> None:
    """Compares what config.json says of the model with the spec; weights of one shape may mean another function."""
    ours = hf_config(spec, vocab_size=0, length=0)
    rope = theirs.get("rope_parameters") or theirs.get("rope_scaling") or {}
    given = {**theirs, **{key: value for key, value in rope.items() if key == "rope_theta"}}
    if (kind := rope.get("rope_type", rope.get("type", "default"))) != "default":
        raise _unusable(folder, f"is of a model with rope_type={kind!r} in its config.json, which this model does not have")
    for name in _COMPARED:
        value = given.get(name)
        if value is not None and value != ours[name]:
            raise _unusable(folder, f"is of a model with {name}={value!r} in its config.json, and this one has {ours[name]!r}")


def _unusable(folder: str, why: str) -> ConfigError:
    return ConfigError(
        f"model.init_from={folder!r} {why}",
        follows="the model would start from other weights than these",
        remedy="set the model's fields to those of the weights, or give the folder of the right model; "
        "where a change is meant, edit config.json",
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m zephon.train.hf", description="Writes a run's weights for Hugging Face.")
    parser.add_argument("--run", required=True, metavar="URL", help="the run directory")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="where to write")
    parser.add_argument("--step", type=int, help="which checkpoint; the newest by default")
    chosen = parser.parse_args()
    print(export(RunDir(chosen.run), chosen.out, step=chosen.step))


if __name__ == "__main__":
    main()
