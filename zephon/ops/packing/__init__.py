"""Packing algorithms: how documents of any length become rows of one length."""
