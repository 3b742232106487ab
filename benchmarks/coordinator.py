"""How long a coordinator takes to form a generation of many nodes, with agents that are simulated.

    python -m benchmarks.coordinator [--nodes 10,100,1000]

The coordinator is the real one, in a process of its own, with a run directory. The agents are connections that prove that they
know the secret and say what an agent says; they start nothing. Measured are the seconds from the last ``Ready`` to the last
``Assign``: of the first generation, and of the one after a node is lost, which all others leave and form anew. The store, the
workers and their process group are not part of it.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

import psutil

from zephon.agent.channel import NONCE, PROOF, Handshake, Lines
from zephon.agent.messages import TO_AGENT, Assign, Exited, FromAgent, Hello, Ready, Rerendezvous, ToAgent, decode, encode
from zephon.agent.training import Training
from zephon.exits import Exit
from zephon.launch.config.compose import compose
from zephon.run.directory import RunDir
from zephon.run.secret import find_secret
from zephon.run.specs import write_spec


def coordinator(folder: str, nodes: int, ready: Connection) -> None:
    size = [f"nodes={nodes}", f"elastic.nodes_max={nodes}", f"global_batch_size={nodes}", f"lanes.count={nodes}"]
    spec = compose(["conf=bytes", f"runs={folder}", "name=many", "lanes.allow=uneven", "elastic.heartbeat_s=60", *size]).spec
    run = RunDir(str(Path(folder, "many")))
    write_spec(run, 1, spec)

    async def serve() -> None:
        training = Training(run, 1, spec, expected=nodes)
        await training.start("127.0.0.1", 0)
        ready.send(training.port)
        await training.run()

    asyncio.run(serve())


class Agent:
    """One node's connection."""

    def __init__(self, name: str, secret: bytes) -> None:
        self.name, self._secret = name, secret

    async def connect(self, port: int) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", port)
        ours, theirs = os.urandom(NONCE), await self._reader.readexactly(NONCE)
        handshake = Handshake(self._secret, "coordinator", server=theirs, client=ours)
        self._writer.write(ours + handshake.proof("client"))
        handshake.check("server", await self._reader.readexactly(PROOF))
        self._out: Lines = handshake.lines("client")
        self._in: Lines = handshake.lines("server")
        self.say(Hello(self.name, os.getpid(), "simulated", None))

    def say(self, message: FromAgent) -> None:
        self._writer.write(self._out.seal(encode(message)))

    async def hear(self, kind: type[ToAgent]) -> ToAgent:
        while True:
            message = decode(self._in.open(await self._reader.readline()), TO_AGENT)
            if isinstance(message, kind):
                return message

    def close(self) -> None:
        self._writer.transport.abort()


async def measured(port: int, secret: bytes, count: int) -> tuple[float, float]:
    """Seconds of the first generation, and of the one after a node is lost."""
    agents = [Agent(f"node-{number}@1", secret) for number in range(count)]
    for first in range(0, count, 50):
        await asyncio.gather(*(agent.connect(port) for agent in agents[first : first + 50]))
    for agent in agents:
        agent.say(Ready("127.0.0.1:1"))
    begun = time.perf_counter()
    assigned = await asyncio.gather(*(agent.hear(Assign) for agent in agents))
    formed = time.perf_counter() - begun
    (generation,) = {message.generation for message in assigned if isinstance(message, Assign)}
    agents.pop().close()
    await asyncio.gather(*(agent.hear(Rerendezvous) for agent in agents))
    for number, agent in enumerate(agents):
        agent.say(Exited(generation, {number: Exit.LOST_PEER}))
        agent.say(Ready("127.0.0.1:1"))
    begun = time.perf_counter()
    await asyncio.gather(*(agent.hear(Assign) for agent in agents))
    return formed, time.perf_counter() - begun


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default="10,100,1000")
    for count in (int(text) for text in parser.parse_args().nodes.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            ours, theirs = multiprocessing.Pipe()
            process = multiprocessing.get_context("spawn").Process(target=coordinator, args=(folder, count, theirs))
            process.start()
            try:
                port = ours.recv()
                secret = find_secret(RunDir(str(Path(folder, "many"))), 1)
                assert secret is not None
                formed, again = asyncio.run(measured(port, secret, count))
                memory = psutil.Process(process.pid).memory_info().rss / 2**20
                print(f"{count:>6} nodes   first {formed:.3f} s   after a loss {again:.3f} s   memory {memory:.0f} MiB")
            finally:
                process.kill()
                process.join()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
