"""Zephon's loader in other trainers. Each module is optional and imports its trainer only when it is used."""
