"""The fluent chain over a frozen definition: checked, described, fingerprinted."""
