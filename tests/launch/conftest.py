"""Fixtures of the launcher's tests."""

from tests.agent.objects import objects, store
from tests.agent.toy import toy

__all__ = ["objects", "store", "toy"]
