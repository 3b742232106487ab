"""Tests of the trainer: real processes that meet over gloo."""
