"""Tokenizers: one small interface over several back ends.

A tokenizer's *identity* is the hash of its definition and belongs to the contract; the back end that computes it is a
performance setting. Spellings of special tokens inside a document are ordinary text: a document cannot inject one.
"""

from zephon.ops.tokenizers.backends import Backend, Unencodable
from zephon.ops.tokenizers.loading import load_tokenizer
from zephon.ops.tokenizers.parity import check_parity
from zephon.ops.tokenizers.tokenizer import Tokenizer

__all__ = ["Backend", "Tokenizer", "Unencodable", "check_parity", "load_tokenizer"]
