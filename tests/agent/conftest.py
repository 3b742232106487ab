"""Fixtures of the agent's tests."""

from tests.agent.peers import peers
from tests.agent.played import coordinator, server
from tests.agent.toy import toy

__all__ = ["coordinator", "peers", "server", "toy"]
