"""The run directory: each file of it is written and read here, and only here."""
