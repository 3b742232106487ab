"""Backends: who runs the nodes of an attempt."""
