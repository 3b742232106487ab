"""Backends: who runs the nodes of an attempt. base.py says what one can do, registry.py finds it by its name."""
