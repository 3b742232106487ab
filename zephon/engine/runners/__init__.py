"""Runners: where stages work. The results come back in the order of submission."""
