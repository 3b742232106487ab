"""The agent's entry point: one node of an elastic job, from its arguments to its exit status.

Exit status: 0 the job is done, 65 configuration or contract error, 70 the job has failed for good (the coordinator has
decided so: starting this agent again is no use), 143 asked to leave (after draining), 1 this agent failed.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
import threading
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from zephon.errors import ConfigError, ZephonError
from zephon.exits import Exit
from zephon.run import events
from zephon.run.attempt import shared_logs
from zephon.run.directory import RunDir
from zephon.run.finished import missing_at_end
from zephon.run.secret import wait_secret
from zephon.run.specs import has_spec, read_spec, write_spec
from zephon.spec.experiment import RunSpec

if TYPE_CHECKING:
    from zephon.agent.forkserver import ForkServer
    from zephon.agent.link import Link
    from zephon.agent.node import NodeConfig
    from zephon.agent.stage_runner import OrderedStages

_AGENT = ("torch.distributed", "torch.distributed.elastic.agent.server.api", "zephon.agent.node", "zephon.agent.link")
# torch imports these late, again in every process: the constructor of DDP alone imports 900 modules.
_LATE = ("torch.distributed.checkpoint", "torch.distributed.fsdp", "torch.nn.parallel", "torch.optim", "torch._dynamo")
_LOADER = ("zephon.io.*", "zephon.work.*", "zephon.ops.*", "zephon.engine.*", "zephon.run.ledger", "orjson")
_OPTIONAL = ("torch.utils.tensorboard", "torch.utils.serialization", "pydoc_data.topics")


def modules_for(worker: str) -> list[str]:
    """The modules to import before workers are forked: for a package all of it, torch's late imports and the loader.

    A worker that is a single module is imported when it runs; its own imports load what it needs.
    """
    import importlib.util

    try:
        module_spec = importlib.util.find_spec(worker)
    except ModuleNotFoundError:  # a package above it is missing
        module_spec = None
    if module_spec is None:
        raise ConfigError(
            f"worker module {worker!r} was not found",
            follows="no worker could start",
            remedy="give --worker a module that Python can import here",
        )
    package = [*_LATE, *_LOADER, *_OPTIONAL, f"{worker}.*"]
    return [*_AGENT, *(package if module_spec.submodule_search_locations else ())]


def main(argv: list[str] | None = None) -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname).1s %(name)s: %(message)s", stream=sys.stderr)
    try:
        return _run(_arguments(argv))
    except ZephonError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_status


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m zephon.agent", description=__doc__, allow_abbrev=False)
    parser.add_argument("--run", required=True, help="URL of the run directory")
    parser.add_argument("--attempt", type=int, required=True, help="number of this start of the run")
    parser.add_argument("--procs", type=int, default=1, help="workers on this node")
    parser.add_argument("--endpoint", default=os.environ.get("ZEPHON_ENDPOINT"), help="HOST:PORT of the coordinator")
    parser.add_argument("--node", default=os.environ.get("ZEPHON_NODE"), help="identity of this node")
    parser.add_argument("--worker", default="zephon.train", help="module that each worker runs")
    arguments = parser.parse_args(argv)
    if not arguments.endpoint:
        raise ConfigError(
            "neither --endpoint nor ZEPHON_ENDPOINT is given",
            follows="this node could not find the others",
            remedy="give the coordinator's host:port",
        )
    return arguments


def _run(arguments: argparse.Namespace) -> int:
    from zephon.agent.fork_children import preload
    from zephon.agent.forkserver import ForkServer

    leaving = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: leaving.set())
    signal.signal(signal.SIGINT, lambda *_: leaving.set())
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a closed terminal is no reason to stop training
    spec = bring_spec(RunDir(arguments.run), arguments.attempt)
    preload(modules_for(arguments.worker))
    server = ForkServer.fork()  # before the first thread
    try:
        return _serve(arguments, spec, server, leaving)
    finally:
        server.close()


def _serve(arguments: argparse.Namespace, spec: RunSpec, server: ForkServer, leaving: threading.Event) -> int:
    from torch.distributed.elastic.rendezvous.api import RendezvousClosedError

    from zephon.agent.link import Link
    from zephon.agent.node import NodeAgent

    config = _config(arguments, spec)
    beat_s = spec.elastic.heartbeat_s / 2
    timeout_s = spec.elastic.join_timeout_s
    secret = wait_secret(RunDir(arguments.run), arguments.attempt, timeout_s=timeout_s, leaving=leaving)
    if secret is None:
        return Exit.LEFT
    link = Link(arguments.endpoint, config.node, secret=secret, beat_s=beat_s, timeout_s=timeout_s)
    link.start()
    stages = _stages(arguments, spec, config, link, server, leaving)
    agent = NodeAgent(config, link, server, leaving, stages)
    result = None
    try:
        result = agent.run()
    except RendezvousClosedError as end:
        if link.finished is None:
            print(f"error: {end}", file=sys.stderr)
            return Exit.FAILED
    finally:
        link.close()
    if link.finished is not None:
        return Exit.FAILED_FOR_GOOD if link.finished.status == Exit.FAILED else link.finished.status
    if result is not None and stages is not None:
        return Exit.FAILED  # stages may remain, and no coordinator can tell
    if result is None:
        return Exit.LEFT
    if missing := missing_at_end(RunDir(arguments.run), spec.trainer.steps):
        print(f"error: the workers ended with status 0, but {missing}; the coordinator is gone", file=sys.stderr)
        return Exit.FAILED
    return Exit.DONE  # its workers have done the last step; the coordinator is gone


def _stages(
    arguments: argparse.Namespace,
    spec: RunSpec,
    config: NodeConfig,
    link: Link,
    server: ForkServer,
    leaving: threading.Event,
) -> OrderedStages | None:
    """What carries out stages on this node; None where training is all."""
    from zephon.agent.stage_runner import OrderedStages, StageRunner

    if len(spec.stages.order) == 1:
        return None
    logs = f"{os.path.dirname(config.log_dir)}/stages" if config.log_dir else None
    runner = StageRunner(server, rundir=RunDir(arguments.run), attempt=arguments.attempt, env={}, logs=logs)
    return OrderedStages(link, runner, leaving, spec)


def _config(arguments: argparse.Namespace, spec: RunSpec) -> NodeConfig:
    from zephon.agent.node import NodeConfig

    rundir = RunDir(arguments.run)
    node = arguments.node or f"node-0@{uuid.uuid4().hex[:8]}"
    name = node.split("@")[0]
    logs = shared_logs(rundir, arguments.attempt, name) if rundir.local else None
    if given := os.environ.get("ZEPHON_LOGS"):  # a supervisor on this machine keeps them
        logs = os.path.join(given, name)
    return NodeConfig(
        run=arguments.run,
        attempt=arguments.attempt,
        node=node,
        procs=arguments.procs,
        worker=arguments.worker,
        log_dir=logs,
        drain_s=spec.elastic.drain_s,
        join_timeout_s=spec.elastic.join_timeout_s,
    )


def check_writable(rundir: RunDir, attempt: int) -> None:
    """Refuses a run directory in which this process may not write: later errors would be crashes, tried again and again."""
    if not rundir.local or not os.path.isdir(rundir.root):
        return
    for path in (rundir.root, rundir.path(events.FILE), rundir.path(*RunDir.in_attempt(attempt))):
        if os.path.exists(path) and not os.access(path, os.W_OK):
            raise ConfigError(
                f"{path} is not writable for user {os.getuid()}, group {os.getgid()}",
                follows="checkpoints, ledger and logs could not be kept",
                remedy="give the directory to that user, or run as its owner (on Kubernetes scheduler.options.run_as_user)",
            )


def bring_spec(rundir: RunDir, attempt: int) -> RunSpec:
    """The attempt's spec; where the run directory lacks it, it is copied there from the file that ``ZEPHON_SPEC_FILE`` names.

    Raises:
        ConfigError: there is neither, or the run directory is not writable.
    """
    check_writable(rundir, attempt)
    spec_file = os.environ.get("ZEPHON_SPEC_FILE")
    if spec_file and not has_spec(rundir, attempt):
        write_spec(rundir, attempt, RunSpec.from_dict(json.loads(Path(spec_file).read_bytes())))
    return read_spec(rundir, attempt)
