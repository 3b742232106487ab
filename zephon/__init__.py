"""Zephon: the same global batch at every step, on any number of GPUs."""

__version__ = "0.1.0"
