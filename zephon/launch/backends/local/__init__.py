"""This machine: one detached supervisor per attempt."""
