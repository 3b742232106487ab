"""The start of an attempt, of a new run or of one that goes on. The command line is a thin layer over this module.

    spec alone       names, sizes, stages, options, data                          refused before anything is written
    with the lease   contract, checkpoints, weights of a fork, attempt, submit    nobody else changes the run meanwhile

The lease is taken before what it protects is read: of two starts in one moment the second sees what the first has done.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from zephon.errors import ConfigError
from zephon.io.named import listings, with_revisions
from zephon.launch import contract as contracts
from zephon.launch.backends.registry import backend, backend_of
from zephon.launch.config.compose import check
from zephon.launch.fork import Parent, forked, write_weights
from zephon.launch.job import BUILT_IN, Job, worker_of
from zephon.launch.status import absolute, records_dir, status_of
from zephon.launch.stored import changed, check_relative, check_same, forget_measures, relocated
from zephon.run.checkpoints import check_kept, newest_checkpoint
from zephon.run.contract_file import Contract, has_contract, read_contract
from zephon.run.directory import RunDir
from zephon.run.environment import environment, write_environment
from zephon.run.events import EventLog, EventReader
from zephon.run.handle import Handle, read_handle, write_handle
from zephon.run.lease import Lease
from zephon.run.ledger import has_ledger, steps_recorded
from zephon.run.specs import first_spec, new_attempt, newest_spec
from zephon.run.state import AttemptState
from zephon.spec.experiment import RunSpec
from zephon.stages import stage as stages
from zephon.stages.record import outstanding


@dataclasses.dataclass(frozen=True, kw_only=True)
class Started:
    """What a start did: ``handle`` is TorchX's, None when nothing was submitted because the run is finished.

    ``remarks`` is what the cluster has said beforehand.
    """

    rundir: RunDir
    attempt: int
    handle: str | None
    resumed_at: int
    note: str = ""
    remarks: tuple[str, ...] = ()


def rundir_of(spec: RunSpec) -> RunDir:
    """The run directory as the launcher sees it.

    On a cluster, ``runs`` may be a path of the nodes that this machine does not have: then the launcher keeps its record
    (spec, contract, attempts, handles) in the user's state directory, and the rest is where the nodes write it.
    """
    url = f"{spec.runs.rstrip('/')}/{spec.name}"
    if not backend(spec.scheduler.name).here and "://" not in url and not Path(spec.runs).is_dir():
        return RunDir(str(records_dir() / spec.name))
    return RunDir(absolute(url))


def as_read(spec: RunSpec) -> RunSpec:
    """The experiment with the commits of its datasets on the Hugging Face Hub: those of the run, or what is there now.

    Raises:
        ConfigError: the Hub cannot be asked.
    """
    rundir = rundir_of(spec)
    return with_revisions(spec, read_contract(rundir).pinned if has_contract(rundir) else {})


def url_of(spec: RunSpec, rundir: RunDir) -> str:
    """The run directory as the nodes see it."""
    return rundir.url if backend(spec.scheduler.name).here else f"{spec.runs.rstrip('/')}/{spec.name}"


def request_of(spec: RunSpec, rundir: RunDir, attempt: int, worker: str | None = None) -> object:
    """Exactly what a submit would send; ``str`` shows it."""
    return backend(spec.scheduler.name).request(job_of(spec, rundir, attempt, worker))


def job_of(spec: RunSpec, rundir: RunDir, attempt: int, worker: str | None = None) -> Job:
    """One attempt as its backend gets it."""
    return Job(spec=spec, run=url_of(spec, rundir), attempt=attempt, worker=worker or worker_of(spec))


def start(
    spec: RunSpec,
    *,
    overrides: Sequence[str] = (),
    choices: Mapping[str, str] | None = None,
    sources: Mapping[str, str] | None = None,
    allow: Sequence[str] = (),
    fork: str | None = None,
    worker: str | None = None,
) -> Started:
    """Starts a run, or goes on with it where a run of this name and contract exists.

    Args:
        spec: the experiment.
        overrides, choices, sources: the arguments typed, the options chosen and where each value came from, for the record.
        allow: guarded fields that may differ from the run's.
        fork: name of a new run with the changes: it begins at step 0 with the weights of this run's newest checkpoint.
        worker: module that each worker runs; None follows the experiment's trainer.

    Raises:
        ContractError: a promise of the run would be broken.
        ConfigError: the run is held by another process, or anything in the spec cannot work.
        ZephonError: data that a worker could not read (see ``preflight``).
    """
    worker = worker or worker_of(spec)
    check(spec)
    spec = as_read(spec)
    stages.check(spec, here=backend(spec.scheduler.name).here)
    parent = None
    if fork is not None:
        spec, parent = _forked(spec, fork)
        check(spec)
    rundir, seen = rundir_of(spec), data_seen(spec)
    with _held(rundir, spec) as lease:
        before = _check_ended(rundir)
        contract, allowed = _contract(rundir, spec, seen, allow, parent)
        check_kept(rundir)
        done = newest_checkpoint(rundir)
        if done >= spec.trainer.steps and not outstanding(spec, rundir, here=backend(spec.scheduler.name).here):
            lease.release()
            return _finished(rundir, spec, done)
        attempt = max(rundir.attempts(), default=0) + 1
        request_of(spec, rundir, attempt, worker)  # an attempt that cannot be submitted is not made
        if done < spec.trainer.steps and backend(spec.scheduler.name).here and worker in BUILT_IN:
            from zephon.launch import preflight  # the loader, which stop and rescale do not need

            preflight.check(spec, rundir)
            lease.renew()
        if before is not None and before.state != "DONE":
            backend_of(rundir, attempt - 1).discard(rundir, attempt - 1, keep_ended=True)
        backend(spec.scheduler.name).check_alone(job_of(spec, rundir, attempt, worker))
        remarks = backend(spec.scheduler.name).examine(job_of(spec, rundir, attempt, worker))
        lease.renew()  # a cluster may have taken its time
        if parent is not None:
            write_weights(parent, spec)
            lease.renew()
        attempt = new_attempt(rundir, spec)
        write_environment(rundir, attempt, environment(overrides, choices or {}, sources))
        if seen.files is not None and not _trained(rundir):
            forget_measures(rundir, contract)
        contracts.record(rundir, contract, spec, allowed, attempt=attempt, steps=steps_done(rundir), files=seen.files)
        EventLog(rundir, attempt, "launcher").write("start", nodes=spec.nodes, resumed_at=max(done, 0), sha256=spec.sha256())
        job = job_of(spec, rundir, attempt, worker)
        submitted = Handle(scheduler=spec.scheduler.name, handle="", worker=worker, time=time.time())
        write_handle(rundir, attempt, submitted)  # whatever cuts the submit off, its backend is known
        handle = backend(spec.scheduler.name).submit(job, lease)
    write_handle(rundir, attempt, dataclasses.replace(submitted, handle=handle))
    return Started(rundir=rundir, attempt=attempt, handle=handle, resumed_at=max(done, 0), remarks=remarks)


@contextlib.contextmanager
def _held(rundir: RunDir, spec: RunSpec) -> Iterator[Lease]:
    """The run's lease. The block releases it or hands it on; an error releases it."""
    rundir.check_exclusive()
    lease = Lease(rundir, holder=f"launcher of {spec.name}")
    lease.take()
    try:
        yield lease
    except BaseException:
        lease.release()
        raise


def _check_ended(rundir: RunDir) -> AttemptState | None:
    """Refuses a second attempt beside one that is under way, and returns the state of the last one.

    One on a cluster holds no lease.
    """
    attempt = max(rundir.attempts(), default=0)
    state = backend_of(rundir, attempt).state(rundir, attempt, EventReader(rundir)) if attempt else None
    if state is not None:
        check_known(rundir.url, attempt, state.state, state.message)
    if state is not None and not state.ended:
        raise ConfigError(
            f"attempt {attempt} of {rundir.url} is under way ({state.state}{f': {state.message}' if state.message else ''})",
            follows="two attempts would write one run directory at the same time",
            remedy="stop it first, or change its size with rescale",
        )
    return state


def check_known(run: str, attempt: int, state: str, message: str) -> None:
    """Refuses to go by a guess: an attempt whose state is not known, or that is in another cluster, may train.

    Raises:
        ConfigError: with what is known.
    """
    if state not in ("UNKNOWN", "ELSEWHERE"):
        return
    raise ConfigError(
        f"whether attempt {attempt} of {run} still runs is not known: {message}",
        follows="two attempts would write one run directory at the same time",
        remedy=(
            "repeat this when its cluster answers"
            if state == "UNKNOWN"
            else "go back to its cluster (kubectl config use-context NAME, or KUBECONFIG) and stop it there"
        )
        + f"; where that cluster is gone for good, remove attempts/{RunDir.attempt_name(attempt)}/placement.json of the run",
    )


def _finished(rundir: RunDir, spec: RunSpec, done: int) -> Started:
    note = f"{spec.name} is finished: all {spec.trainer.steps} steps are done; nothing was started"
    return Started(rundir=rundir, attempt=max(rundir.attempts(), default=0), handle=None, resumed_at=done, note=note)


def _contract(
    rundir: RunDir, spec: RunSpec, seen: contracts.Seen, allow: Sequence[str], parent: Parent | None
) -> tuple[Contract, list[contracts.Difference]]:
    """The contract of this start, and what ``allow`` lets through."""
    if not has_contract(rundir):
        return contracts.contract_of(spec, parent=parent.to_json() if parent else None, seen=seen), []
    if parent is not None:
        raise _fork_exists(spec.name)
    contract = read_contract(rundir)
    if seen.files is not None and not _trained(rundir):  # no step depends on the old contract; only a fork's weights do
        if contract.parent:
            contract = dataclasses.replace(contract, files=seen.files, token_ids=seen.token_ids)
        else:
            contract = contracts.contract_of(spec, seen=seen)
    allowed = contracts.check(contract, spec, allow=allow, run=spec.name, seen=seen, steps=steps_done(rundir))
    if contract.token_ids is None:  # promised from now on
        contract = dataclasses.replace(contract, token_ids=seen.token_ids)
    return contract, allowed


def steps_done(rundir: RunDir) -> int | None:
    """How many steps the run has trained at most: those after its checkpoint are trained again, with the same data.

    None before the first, and where this machine does not see the run's records.
    """
    return max(newest_checkpoint(rundir), steps_recorded(rundir)) if _trained(rundir) else None


def data_seen(spec: RunSpec, *, ids: bool = True) -> contracts.Seen:
    """What this machine sees of the data; nothing on a cluster, whose nodes may see other places.

    Args:
        ids: whether to look at the tokenizer, which takes a moment.

    Raises:
        ConfigError: data that is not there.
    """
    if not backend(spec.scheduler.name).here:
        return contracts.NOTHING_SEEN
    return contracts.Seen(
        files=listings(spec.data.datasets, content=spec.data.identity == "content"), token_ids=_token_ids(spec) if ids else None
    )


def _token_ids(spec: RunSpec) -> str | None:
    from zephon.ops.tokenizers import load_tokenizer  # the loader, which stop and rescale do not need

    try:
        return load_tokenizer(spec.tokenizer.id, backend=spec.tokenizer.backend).ids_sha256
    except ConfigError:  # what is wrong with it is found out with everything else that a worker needs
        return None


def contract_differences(
    rundir: RunDir, spec: RunSpec, *, seen: contracts.Seen = contracts.NOTHING_SEEN
) -> list[contracts.Difference]:
    """How a start of ``spec`` would differ from the run, if there is one; ``seen`` as `data_seen` gives it."""
    if not has_contract(rundir):
        return []
    contract, trained = read_contract(rundir), _trained(rundir)
    if backend(spec.scheduler.name).here and not trained and not contract.parent:
        return []
    return contracts.differences(contract, spec, seen=seen if trained else contracts.NOTHING_SEEN)


def _trained(rundir: RunDir) -> bool:
    return has_ledger(rundir) or newest_checkpoint(rundir) >= 0


def _forked(spec: RunSpec, name: str) -> tuple[RunSpec, Parent]:
    """The spec of a fork, and where it comes from."""
    parent, child = rundir_of(spec), dataclasses.replace(spec, name=name)
    if has_contract(rundir_of(child)):
        raise _fork_exists(name)
    changes = tuple(contract_differences(parent, spec, seen=data_seen(spec)))
    return forked(spec, name, parent=parent, changes=changes, run=url_of(child, rundir_of(child)))


def _as_begun(spec: RunSpec, rundir: RunDir) -> RunSpec:
    """With the rule of the run's first start for a damaged checkpoint: another one that was typed later was for one attempt."""
    begun = first_spec(rundir)
    if begun is None:
        return spec
    return dataclasses.replace(spec, checkpoint=dataclasses.replace(spec.checkpoint, resume=begun.checkpoint.resume))


def _fork_exists(name: str) -> ConfigError:
    return ConfigError(
        f"fork={name}: a run of that name exists",
        follows="two runs would share one directory",
        remedy="choose another name",
    )


def resume(
    rundir: RunDir,
    overrides: Sequence[str] = (),
    *,
    allow: Sequence[str] = (),
    fork: str | None = None,
    worker: str | None = None,
    config_dir: str | None = None,
) -> Started:
    """Goes on with a stopped or failed run from its newest complete checkpoint; a finished run is left alone.

    Args:
        overrides: changes, ``key=value``; ``stages=OPTION`` is looked up in ``config_dir`` and the shipped groups.
        allow, fork, worker: as for ``start``; the worker is the last attempt's when not given.

    Raises:
        ConfigError: the run is still running, or an override would make it another run.
    """
    status = status_of(rundir)
    attempt, handle = status.attempt, read_handle(rundir, status.attempt)
    check_known(status.name, attempt, status.state, status.message)
    if status.live:
        raise ConfigError(
            f"{status.name} is running (attempt {attempt}, step {status.step} of {status.steps})",
            follows="two attempts would write one run directory at the same time",
            remedy=f"change its size with: zephon rescale {status.name} nodes=N, or stop it first",
        )
    if status.state == "STOPPED" and handle is not None:
        before = backend(handle.scheduler)
        if not overrides and fork is None and before.resume(rundir, attempt):
            resumed_at = max(newest_checkpoint(rundir), 0)
            return Started(rundir=rundir, attempt=attempt, handle=handle.handle, resumed_at=resumed_at)
    stored = relocated(_as_begun(newest_spec(rundir), rundir), rundir)
    spec = changed(stored, overrides, config_dir=config_dir)
    check_same(spec, stored)
    if backend(spec.scheduler.name).here:
        check_relative(spec, rundir, attempt)
    known = handle.worker if handle is not None else None
    return start(spec, overrides=overrides, allow=allow, fork=fork, worker=worker or known)
