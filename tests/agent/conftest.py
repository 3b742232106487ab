"""Fixtures of the agent's tests."""

from tests.agent.peers import peers
from tests.agent.toy import toy

__all__ = ["peers", "toy"]
