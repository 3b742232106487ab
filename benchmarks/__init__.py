"""Ratios against a bare loop, taken side by side: ``python -m benchmarks``."""
