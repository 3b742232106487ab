"""Tokenizer definitions of every model type, built and trained with the ``tokenizers`` library itself."""

from __future__ import annotations

import json
from collections.abc import Callable

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, processors, trainers
from tokenizers import pre_tokenizers as before

CORPUS = [
    *["hello world say now the quick brown fox jumps over the lazy dog 12345 don't"] * 20,
    *["</s> <s> </s>now [CLS] [SEP] Hello World"] * 20,
    "日本語 テキスト éèà",
    "def f(a):\n    return a",
]
GPT4 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
BYTES = [f"<0x{i:02X}>" for i in range(256)]


def byte_level(*, prefix: bool = False) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = before.ByteLevel(add_prefix_space=prefix)
    alphabet = sorted(before.ByteLevel.alphabet())
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False))
    return tokenizer


def _with_prefix_space() -> Tokenizer:
    tokenizer = byte_level(prefix=True)
    tokenizer.add_special_tokens(["<s>", "</s>"])
    return tokenizer


def with_added_tokens() -> Tokenizer:
    """Special and other added tokens by turns, with every flag."""
    tokenizer = byte_level()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.add_tokens(["<tool_call>", AddedToken("<l>", lstrip=True), AddedToken("<r>", rstrip=True)])
    tokenizer.add_special_tokens([AddedToken("<|end|>", lstrip=True, rstrip=True, special=True)])
    tokenizer.add_tokens([AddedToken("word", single_word=True), AddedToken("Norm", normalized=True)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> $B",
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in ("<s>", "</s>")],
    )
    return tokenizer


def split_like_gpt4() -> Tokenizer:
    tokenizer = byte_level()
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = before.Sequence(
        [before.Split(Regex(GPT4), "isolated"), before.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.add_special_tokens(["<|endoftext|>"])
    return tokenizer


def ignoring_merges() -> Tokenizer:
    """As Llama 3's: a whole word of the vocabulary is taken without merges."""
    tokenizer = split_like_gpt4()
    loaded = json.loads(tokenizer.to_str())
    loaded["model"]["ignore_merges"] = True
    loaded["model"]["vocab"]["</s>"] = max(loaded["model"]["vocab"].values()) + 2
    loaded["added_tokens"].append({**loaded["added_tokens"][0], "content": "</s>", "id": loaded["model"]["vocab"]["</s>"]})
    return Tokenizer.from_str(json.dumps(loaded))


def _sentence_piece_bpe() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    names = ["<unk>", "<s>", "</s>", *BYTES]
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=420, special_tokens=names, show_progress=False))
    loaded = json.loads(tokenizer.to_str())
    loaded["added_tokens"] = [token for token in loaded["added_tokens"] if token["content"] not in BYTES]
    return Tokenizer.from_str(json.dumps(loaded))


def _metaspace_bpe(scheme: str) -> Tokenizer:
    loaded = json.loads(_sentence_piece_bpe().to_str())
    loaded["normalizer"] = None
    loaded["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": False}
    return Tokenizer.from_str(json.dumps(loaded))


def _unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = before.Metaspace()
    names = ["<s>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(vocab_size=120, special_tokens=names, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens(["<extra>"])
    return tokenizer


def _word_piece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = before.BertPreTokenizer()
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    tokenizer.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=300, special_tokens=names, show_progress=False))
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


def _words(*, special: bool = True) -> Tokenizer:
    """Words between spaces, so that a special token can be a word."""
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "[CLS]": 1, "say": 2, "now": 3, "</s>": 4, "x": 5}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = before.WhitespaceSplit()
    if special:
        tokenizer.add_special_tokens(["[UNK]", "[CLS]", "</s>"])
    else:
        tokenizer.post_processor = processors.BertProcessing(("</s>", 4), ("[CLS]", 1))
    tokenizer.add_tokens(["<tool_call>"])
    return tokenizer


DEFINITIONS: dict[str, Callable[[], Tokenizer]] = {
    "BPE, ByteLevel": byte_level,
    "BPE, ByteLevel with a prefix space": _with_prefix_space,
    "BPE, ByteLevel, added tokens": with_added_tokens,
    "BPE, Split, NFC": split_like_gpt4,
    "BPE that ignores merges": ignoring_merges,
    "BPE, Prepend": _sentence_piece_bpe,
    "BPE, Metaspace always": lambda: _metaspace_bpe("always"),
    "BPE, Metaspace first": lambda: _metaspace_bpe("first"),
    "BPE, Metaspace never": lambda: _metaspace_bpe("never"),
    "Unigram, Metaspace, NFKC": _unigram,
    "WordPiece, Bert": _word_piece,
    "WordLevel": _words,
    "WordLevel, special words of the post-processor": lambda: _words(special=False),
}


def definition_of(name: str) -> str:
    return str(DEFINITIONS[name]().to_str())
