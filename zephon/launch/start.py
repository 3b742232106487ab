"""The verbs as functions: start, resume, rescale, stop. The command line is a thin layer over this module.

start(composed)  ->  contract check -> attempt directory -> AppDef -> TorchX Runner -> Started
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torchx.runner import Runner
from torchx.specs import AppDef, AppDryRunInfo

from zephon.errors import ConfigError, nearest
from zephon.io.named import listings
from zephon.launch import contract as contracts
from zephon.launch import control
from zephon.launch.appdef import app_def
from zephon.launch.backends.local import scheduler as local
from zephon.launch.config.compose import check, option
from zephon.launch.config.overrides import split, to_tree
from zephon.launch.config.schema import is_group
from zephon.launch.job import DEFAULT_WORKER, Job
from zephon.launch.status import LIVE, RunStatus, absolute, look, records_dir
from zephon.launch.stored import check_relative, check_same, forget_measures, placed
from zephon.run.checkpoints import newest_checkpoint
from zephon.run.directory import RunDir
from zephon.run.environment import environment, write_environment
from zephon.run.events import EventLog, EventReader
from zephon.run.handle import Handle, read_handle, write_handle
from zephon.run.lease import Lease
from zephon.run.ledger import has_ledger
from zephon.run.specs import new_attempt, newest_spec
from zephon.spec.experiment import RunSpec
from zephon.stages import stage as stages
from zephon.stages.record import outstanding

UNSETTLED = ("QUEUED", "STARTING")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Started:
    """What a start did: ``handle`` is TorchX's, None when nothing was submitted because the run is finished."""

    rundir: RunDir
    attempt: int
    handle: str | None
    resumed_at: int
    note: str = ""


def runner() -> Runner:
    """TorchX with our schedulers and nothing else; no entry points are read."""
    return Runner("zephon", {"local": local.create_scheduler, "kubernetes": _kubernetes, "volcano": _volcano})


def _kubernetes(session_name: str, **kwargs: Any) -> Any:
    from zephon.launch.backends.kubernetes.scheduler import create_scheduler

    return create_scheduler(session_name, **kwargs)


def _volcano(session_name: str, **kwargs: Any) -> Any:
    from zephon.launch.backends.volcano import create_scheduler

    return create_scheduler(session_name, **kwargs)


def scheduler_of(spec: RunSpec) -> str:
    """The scheduler's name, checked."""
    known = ("local", "kubernetes", "volcano")
    if spec.scheduler.name not in known:
        raise ConfigError(
            f"scheduler.name={spec.scheduler.name!r} is not a scheduler",
            follows="the job could not be submitted",
            remedy=nearest(spec.scheduler.name, known),
        )
    return spec.scheduler.name


def rundir_of(spec: RunSpec) -> RunDir:
    """The run directory as the launcher sees it.

    On a cluster, ``runs`` may be a path of the nodes that this machine does not have: then the launcher keeps its record
    (spec, contract, attempts, handles) in the user's state directory, and the rest is where the nodes write it.
    """
    url = f"{spec.runs.rstrip('/')}/{spec.name}"
    if spec.scheduler.name != "local" and "://" not in url and not Path(spec.runs).is_dir():
        return RunDir(str(records_dir() / spec.name))
    return RunDir(absolute(url))


def url_of(spec: RunSpec, rundir: RunDir) -> str:
    """The run directory as the nodes see it."""
    return rundir.url if spec.scheduler.name == "local" else f"{spec.runs.rstrip('/')}/{spec.name}"


def start(
    spec: RunSpec,
    *,
    words: Sequence[str] = (),
    choices: Mapping[str, str] | None = None,
    allow: Sequence[str] = (),
    fork: str | None = None,
    worker: str = DEFAULT_WORKER,
) -> Started:
    """Starts a run, or goes on with it where a run of this name and contract exists.

    Args:
        spec: the experiment.
        words, choices: what was typed and chosen, for the record.
        allow: guarded fields that may differ from the run's.
        fork: name of a new run with the changes: it begins at step 0 with the weights of this run's newest checkpoint.
        worker: module that each worker runs.

    Raises:
        ContractError: a promise of the run would be broken.
        ConfigError: the run is held by another process, or anything in the spec cannot work.
    """
    check(spec)
    scheduler_of(spec)
    stages.check(spec)
    parent = None
    if fork is not None:
        spec, parent = _forked(spec, fork)
        check(spec)
    rundir = rundir_of(spec)
    contract, allowed = _contract(rundir, spec, allow, parent)
    done = newest_checkpoint(rundir)
    if done >= spec.trainer.steps and not outstanding(spec, rundir):
        attempts = rundir.attempts()
        note = f"{spec.name} is finished: all {spec.trainer.steps} steps are done; nothing was started"
        return Started(rundir=rundir, attempt=attempts[-1] if attempts else 0, handle=None, resumed_at=done, note=note)
    lease = Lease(rundir, holder=f"launcher of {spec.name}")
    lease.take()
    try:
        if parent is not None:
            _hand_down(parent, spec)
        attempt = new_attempt(rundir, spec)
        write_environment(rundir, attempt, environment(words, choices or {}))
        if spec.scheduler.name == "local" and not _trained(rundir):
            forget_measures(rundir, contract)
        contracts.record(rundir, contract, spec, allowed, attempt=attempt)
        EventLog(rundir, attempt, "launcher").write("start", nodes=spec.nodes, resumed_at=max(done, 0), sha256=spec.sha256())
        handle = _submit(spec, rundir, attempt, worker, lease)
    except BaseException:
        lease.release()
        raise
    return Started(rundir=rundir, attempt=attempt, handle=handle, resumed_at=max(done, 0))


def job(spec: RunSpec, rundir: RunDir, attempt: int, worker: str = DEFAULT_WORKER) -> AppDef:
    """The AppDef of an attempt."""
    return app_def(Job(spec=spec, run=url_of(spec, rundir), attempt=attempt, worker=worker))


def dryrun(spec: RunSpec, rundir: RunDir, attempt: int, worker: str = DEFAULT_WORKER) -> AppDryRunInfo[Any, Any]:
    """Exactly what a submit would send."""
    with runner() as torchx:
        return torchx.dryrun(job(spec, rundir, attempt, worker), scheduler_of(spec), options(spec))


def options(spec: RunSpec) -> dict[str, Any]:
    """The scheduler's own options; ours about the node (cpu, gpu, memory_mb, image) are in the AppDef."""
    found = dict(spec.scheduler.options)
    if spec.scheduler.name in ("local", "volcano"):
        for name in ("cpu", "gpu", "memory_mb", "image"):
            found.pop(name, None)
    if spec.scheduler.name == "local":
        known = {field.name for field in dataclasses.fields(local.LocalOpts)} - {"_extra_cfg", "lease"}
        for name in found:
            if name not in known:
                raise ConfigError(
                    f"scheduler.options.{name} is not an option of scheduler=local",
                    follows="the setting would have no effect",
                    remedy=nearest(name, known),
                )
    return found


def _submit(spec: RunSpec, rundir: RunDir, attempt: int, worker: str, lease: Lease) -> str:
    config = options(spec)
    name = scheduler_of(spec)
    if name == "local":
        config["lease"] = lease.token
    with runner() as torchx:
        info = torchx.dryrun(job(spec, rundir, attempt, worker), name, config)
        handle = str(torchx.schedule(info))
    if name != "local":
        lease.release()  # the job on the cluster is its own holder; a laptop's clock must not be
    write_handle(rundir, attempt, Handle(scheduler=name, handle=handle, worker=worker, time=time.time()))
    return handle


def _contract(
    rundir: RunDir, spec: RunSpec, allow: Sequence[str], parent: Mapping[str, Any] | None
) -> tuple[dict[str, Any], list[contracts.Difference]]:
    files = files_seen(spec)
    if not rundir.exists("contract.json"):
        return contracts.contract_of(spec, parent=parent, files=files), []
    if parent is not None:
        raise ConfigError(
            f"fork={spec.name}: a run of that name exists",
            follows="two runs would share one directory",
            remedy="choose another name",
        )
    contract = rundir.read_json("contract.json")
    if files is not None and not _trained(rundir):  # no step depends on what was asked for before; a fork's weights are given
        contract = {**contract, "files": files} if contract.get("parent") else contracts.contract_of(spec, files=files)
    allowed = contracts.check(contract, spec, allow=allow, run=spec.name, files=files)
    return contract, allowed


def files_seen(spec: RunSpec) -> dict[str, Any] | None:
    """The listing of each dataset; None on a cluster, whose nodes may see other places than this machine.

    Raises:
        ConfigError: data that is not there.
    """
    return listings(spec.data.datasets) if spec.scheduler.name == "local" else None


def contract_differences(
    rundir: RunDir, spec: RunSpec, *, files: Mapping[str, Any] | None = None
) -> list[contracts.Difference]:
    """What differs between a run and a start of ``spec`` in it, with ``files`` those of ``files_seen``; nothing for no run."""
    if not rundir.exists("contract.json"):
        return []
    contract, trained = rundir.read_json("contract.json"), _trained(rundir)
    if spec.scheduler.name == "local" and not trained and not contract.get("parent"):
        return []
    return contracts.differences(contract, spec, files=files if trained else None)


def _trained(rundir: RunDir) -> bool:
    return has_ledger(rundir) or newest_checkpoint(rundir) >= 0


def _forked(spec: RunSpec, name: str) -> tuple[RunSpec, dict[str, Any]]:
    """The spec of a fork and the record of its parent."""
    parent = rundir_of(spec)
    step = newest_checkpoint(parent)
    if step < 0:
        raise ConfigError(
            f"fork={name}: {parent.url} has no complete checkpoint",
            follows="there would be nothing to start from",
            remedy="start a new run under another name: name=NAME",
        )
    changed = contract_differences(parent, spec, files=files_seen(spec))
    record = {"run": parent.url, "step": step, "changes": [dataclasses.asdict(d) for d in changed]}
    child = dataclasses.replace(spec, name=name)
    weights = RunDir(url_of(child, rundir_of(child))).path("parent")
    return dataclasses.replace(child, model=dataclasses.replace(spec.model, init_from=weights)), record


def _hand_down(parent: Mapping[str, Any], spec: RunSpec) -> None:
    """Writes the parent's weights where the fork begins from; in a process of its own, for that needs torch."""
    argv = [sys.executable, "-m", "zephon.train.hf", "--run", parent["run"], "--step", str(parent["step"])]
    done = subprocess.run([*argv, "--out", str(spec.model.init_from)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError(
            f"the weights of {parent['run']} at step {parent['step']} could not be handed down: {done.stderr.strip()[-300:]}",
            follows="the fork would begin from other weights than its parent's",
            remedy="see the message; the parent run is unchanged",
        )


def changed(spec: RunSpec, words: Sequence[str], *, config_dir: str | None = None) -> RunSpec:
    """The spec with ``key=value`` words applied; of the config groups, ``stages=`` can be chosen again."""
    tree = spec.to_dict()
    for text in words:
        word = split(text)
        if word.key == "stages" and not word.prefix:
            _graft(tree, {"stages": option("stages", word.value or "", config_dir)})
            continue
        if word.prefix or is_group(word.key):
            raise ConfigError(
                f"{text!r} cannot change a stored experiment",
                follows="its config groups are not composed again",
                remedy="set single fields: KEY.FIELD=VALUE",
            )
        _graft(tree, to_tree(word))
    return RunSpec.from_dict(json.loads(json.dumps(tree)))


def _graft(tree: dict[str, Any], branch: Mapping[str, Any]) -> None:
    for key, value in branch.items():
        if isinstance(value, Mapping) and isinstance(tree.get(key), dict):
            _graft(tree[key], value)
        else:
            tree[key] = value


def resume(
    rundir: RunDir,
    words: Sequence[str] = (),
    *,
    allow: Sequence[str] = (),
    fork: str | None = None,
    worker: str | None = None,
    config_dir: str | None = None,
) -> Started:
    """Goes on with a stopped or failed run from its newest complete checkpoint; a finished run is left alone.

    Args:
        words: changes, ``key=value``; ``stages=OPTION`` is looked up in ``config_dir`` and the shipped groups.
        allow, fork, worker: as for ``start``; the worker is the last attempt's when not given.

    Raises:
        ConfigError: the run is still running, or a word would make it another run.
    """
    status = look(rundir)
    if status.state in LIVE and status.state != "QUEUED":
        raise ConfigError(
            f"{status.name} is running (attempt {status.attempt}, step {status.step} of {status.steps})",
            follows="two attempts would write one run directory at the same time",
            remedy=f"change its size with: zephon rescale {status.name} nodes=N, or stop it first",
        )
    if status.state == "STOPPED" and control.scheduler_of_attempt(rundir, status.attempt) == "kubernetes":
        if not words and fork is None:
            return _go_on(rundir, status)
        control.command(rundir, status.attempt, {"verb": "delete"})
    stored = placed(newest_spec(rundir), rundir)
    spec = changed(stored, words, config_dir=config_dir)
    check_same(spec, stored)
    if spec.scheduler.name == "local":
        check_relative(spec, rundir, status.attempt)
    known = read_handle(rundir, status.attempt)
    return start(spec, words=words, allow=allow, fork=fork, worker=worker or (known.worker if known else "") or DEFAULT_WORKER)


def _go_on(rundir: RunDir, status: RunStatus) -> Started:
    """The stopped Job of a cluster goes on as the same attempt: its objects are all still there."""
    control.command(rundir, status.attempt, {"verb": "resume"})
    known = read_handle(rundir, status.attempt)
    handle = known.handle if known else None
    return Started(rundir=rundir, attempt=status.attempt, handle=handle, resumed_at=max(newest_checkpoint(rundir), 0))


def stop(rundir: RunDir, *, wait_s: float | None = None) -> RunStatus:
    """Drains the running attempt: the step is finished and saved. Waits for the end unless ``wait_s`` is 0."""
    status = look(rundir)
    if status.state not in LIVE:
        return status
    control.command(rundir, status.attempt, {"verb": "stop"})
    if wait_s == 0:
        return look(rundir)
    spec = newest_spec(rundir)
    limit = wait_s if wait_s is not None else spec.elastic.drain_s + 30.0
    return wait_for(rundir, lambda now: now.state not in LIVE, limit, "to stop")


def rescale(rundir: RunDir, nodes: int, *, wait_s: float | None = None) -> RunStatus:
    """Changes the number of nodes of a running attempt; returns when steps are made at the new size.

    An attempt on this machine that has just been started takes the change after its first step.

    Raises:
        ConfigError: not possible for this run, or not settled in time.
    """
    spec = newest_spec(rundir)
    status = look(rundir)
    if status.state in UNSETTLED and control.scheduler_of_attempt(rundir, status.attempt) == "local":
        status = wait_for(rundir, lambda now: now.state not in UNSETTLED, spec.elastic.join_timeout_s, "to make its first step")
    control.command(rundir, status.attempt, {"verb": "rescale", "nodes": nodes})
    if wait_s == 0:
        return look(rundir)
    world = nodes * spec.elastic.procs_per_node
    limit = wait_s if wait_s is not None else spec.elastic.drain_s + 60.0

    same = status.nodes == nodes == status.target

    def settled(now: RunStatus) -> bool:
        there = now.nodes == nodes and now.world_size == world and now.state == "TRAINING"
        told = same or (now.resize or {}).get("generation", 0) > status.generation
        return now.state not in LIVE or (there and told)

    return wait_for(rundir, settled, limit, f"to settle at nodes={nodes}")


def wait_for(rundir: RunDir, test: Callable[[RunStatus], bool], limit_s: float, what: str) -> RunStatus:
    """Looks at the run until a test holds.

    Raises:
        ConfigError: it did not within ``limit_s`` seconds.
    """
    deadline, events = time.monotonic() + limit_s, EventReader(rundir)
    while True:
        status = look(rundir, events=events)
        if test(status):
            return status
        if time.monotonic() > deadline:
            raise ConfigError(
                f"{status.name} took longer than {limit_s:g} s {what} (it is {status.state} at step {status.step})",
                follows="the command would wait without end",
                remedy="look at `status` and `logs`; the order stands and may still be carried out",
            )
        time.sleep(0.1)
