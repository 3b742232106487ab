"""Fixtures of the agent's tests."""

from tests.agent.toy import toy

__all__ = ["toy"]
