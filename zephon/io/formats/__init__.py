"""Formats: how a shard of one kind becomes documents."""
