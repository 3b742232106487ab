"""Fixtures of the launcher's tests."""

from tests.agent.toy import toy

__all__ = ["toy"]
