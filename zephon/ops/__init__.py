"""Stages (stateless, on workers) and accumulators (one state per lane, one thread)."""
