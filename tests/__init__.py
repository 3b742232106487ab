"""Tests; one file per module, named by what they claim."""
