"""The contract: what a run has promised, compared at every resume and rescale.

    pinned     a difference is refused; ``fork=NAME`` starts a new run with it. Phases that have not begun may change
    guarded    a difference is refused unless its field is named in ``allow=[...]``; then it is recorded
    free       never looked at

run/contract_file.py says what is stored of it.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Sequence

from zephon.errors import ConfigError, ContractError, nearest
from zephon.fastjson import Json
from zephon.run.contract_file import Contract, Kind, write_contract
from zephon.run.directory import RunDir
from zephon.spec.experiment import RunSpec
from zephon.work.curriculum import curriculum_change

NOT_SET = "(not set)"
FILES = " (its files)"
TOKEN_IDS = "tokenizer.id (the ids it gives)"


@dataclasses.dataclass(frozen=True)
class Difference:
    """One field whose value now differs from the run's."""

    kind: Kind
    field: str
    run: object
    now: object


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seen:
    """What this machine sees of an experiment's data; None for what it does not see.

    Args:
        files: as ``named.listings`` gives them.
        token_ids: as of `Contract`.
    """

    files: Json | None = None
    token_ids: str | None = None


NOTHING_SEEN = Seen()


def contract_of(spec: RunSpec, *, parent: Json | None = None, seen: Seen = NOTHING_SEEN) -> Contract:
    """The contract of a first start."""
    fields = {"pinned": spec.fields_of("pinned"), "guarded": spec.fields_of("guarded"), "parent": parent}
    plain = json.loads(json.dumps({**fields, **dataclasses.asdict(seen)}))  # tuples become lists, as they do on disk
    return Contract(**plain)


def differences(contract: Contract, spec: RunSpec, *, seen: Seen = NOTHING_SEEN) -> list[Difference]:
    """All pinned and guarded fields that differ, pinned ones first, by name; then datasets whose files have changed, and the
    tokenizer where the same definition now gives other ids.

    A contract may be older than a field: then the value is what runs did before the field existed (`RunSpec.assumed`).
    """
    now = contract_of(spec)
    differing = []
    kinds: tuple[Kind, ...] = ("pinned", "guarded")
    for kind in kinds:
        old, new = ({**spec.assumed(kind), **side.fields_of(kind)} for side in (contract, now))
        for field in sorted(old.keys() | new.keys()):
            before, after = old.get(field, NOT_SET), new.get(field, NOT_SET)
            if before != after:
                differing.append(Difference(kind, field, before, after))
    return differing + _changed_files(contract.files or {}, seen.files or {}) + _changed_ids(contract, seen)


def _changed_ids(contract: Contract, seen: Seen) -> list[Difference]:
    before, now = contract.token_ids, seen.token_ids
    if before is None or now is None or before == now:
        return []
    return [Difference("pinned", TOKEN_IDS, f"sha256 {before[:12]}", f"sha256 {now[:12]}")]


def between(one: Contract, other: Contract) -> list[Difference]:
    """All that differs between the data of two runs: pinned fields by name, then files; a field that one lacks is not set."""
    fields = sorted(one.pinned.keys() | other.pinned.keys())
    values = ((field, one.pinned.get(field, NOT_SET), other.pinned.get(field, NOT_SET)) for field in fields)
    differing = [Difference("pinned", field, value, of_other) for field, value, of_other in values if value != of_other]
    if one.token_ids and other.token_ids and one.token_ids != other.token_ids:
        differing.append(Difference("pinned", TOKEN_IDS, one.token_ids[:12], other.token_ids[:12]))
    return differing + _changed_files(one.files or {}, other.files or {})


def _changed_files(old: Json, new: Json) -> list[Difference]:
    def shown_files(listing: Json) -> str:
        return f"{listing['files']} files, {listing['size']:,} units, sha256 {listing['sha256'][:12]}"

    def shown_change(listing: Json, other: Json) -> str:
        ours, theirs = listing.get("shards", {}), other.get("shards", {})
        names = [name for name in sorted(ours) if theirs and ours[name] != theirs.get(name)]
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        return shown_files(listing) + (f", {names[0]!r} is {ours[names[0]][:12]}{more}" if names else "")

    both = sorted(old.keys() & new.keys())
    changed = [name for name in both if old[name]["sha256"] != new[name]["sha256"]]
    return [
        Difference(
            "pinned", f"data.datasets.{name}{FILES}", shown_change(old[name], new[name]), shown_change(new[name], old[name])
        )
        for name in changed
    ]


def check(
    contract: Contract,
    spec: RunSpec,
    *,
    allow: Sequence[str] = (),
    run: str,
    seen: Seen = NOTHING_SEEN,
    steps: int | None = None,
) -> list[Difference]:
    """The differences that a start takes over: guarded ones that ``allow`` names, and phases that have not begun.

    Args:
        contract, spec, run: of the run, what is asked for, and the run's name for errors.
        allow: guarded fields that may differ.
        seen: the data as it is now, where the launcher sees it.
        steps: how many the run has done: phases may differ from there on; None where nobody knows, and none may.

    Raises:
        ContractError: a pinned field differs, or a guarded one that is not allowed.
        ConfigError: ``allow`` names something that is no guarded field.
    """
    differing = differences(contract, spec, seen=seen)
    guarded = spec.fields_of("guarded")
    for name in allow:
        if not any(_covers(name, field) for field in guarded):
            pinned = any(_covers(name, field) for field in spec.fields_of("pinned") | spec.assumed("pinned"))
            raise ConfigError(
                f"allow=[{name}]: " + ("the field is pinned" if pinned else "there is no guarded field of that name"),
                follows="a change of it would alter the data of later steps" if pinned else "the argument would have no effect",
                remedy="start a new run from the checkpoint with fork=NAME" if pinned else nearest(name, guarded),
            )
    curriculum = curriculum_change(contract.pinned, spec)
    future = curriculum.fields if steps is not None and curriculum.is_future(steps) else ()
    accepted = [d for d in differing if d.field in future or (d.kind == "guarded" and any(_covers(n, d.field) for n in allow))]
    refused = [d for d in differing if d not in accepted]
    if refused:
        past = ""
        if steps is not None and not future and any(d.field in curriculum.fields for d in refused):
            past = f"; step {curriculum.step:,} is the first that would differ, and {steps:,} steps are done"
        raise _refusal(refused, run, past)
    return accepted


def _covers(name: str, field: str) -> bool:
    return field == name or field.startswith(name + ".")


def _refusal(refused: list[Difference], run: str, past: str) -> ContractError:
    pinned = [d for d in refused if d.kind == "pinned"]
    lines = "; ".join(f"{d.field} is {shown(d.run)} in the run and {shown(d.now)} now" for d in refused)
    typed = [d for d in refused if FILES not in d.field and d.field != TOKEN_IDS]
    restore = " ".join(f"{d.field}={_plain(d.run)}" for d in typed if d.run != NOT_SET)
    names = ",".join(d.field for d in refused)
    files = [d.field.removesuffix(FILES) for d in refused if FILES in d.field]
    ways = [f"restore the files of {', '.join(files)}"] if files else []
    if any(d.field == TOKEN_IDS for d in refused) and not any(d.field == "tokenizer.id" for d in typed):
        ways.append("restore the tokenizer's definition, or the version of the package tokenizers that the run began with")
    if typed:
        ways.append(f"restore the value ({restore})" if restore else "leave the field out")
    if not pinned:
        ways.append(f"allow it with allow=[{names}]")
    ways.append("or start a new run from its checkpoint with fork=NEW_NAME")
    error = ContractError(
        f"{run}: {lines}{past}",
        follows="later steps would be trained on other data than the run has promised"
        if pinned
        else "later steps would train another model or by another rule than the run has promised",
        remedy=", ".join(ways),
    )
    error.differences = refused  # type: ignore[attr-defined]
    return error


def shown(value: object) -> str:
    return NOT_SET if value == NOT_SET else json.dumps(value, ensure_ascii=False)


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def record(
    rundir: RunDir,
    contract: Contract,
    spec: RunSpec,
    allowed: list[Difference],
    *,
    attempt: int,
    steps: int | None = None,
    files: Json | None = None,
) -> None:
    """Writes the contract at a start, with the values now in force and the changes that were accepted.

    Args:
        rundir, contract, spec, attempt: of the run, before this start, and what is started.
        allowed: what `check` has let through.
        steps: how many the run has done.
        files: the data's present listing: that of a dataset which joins is added.
    """
    if allowed:
        moment = {"attempt": attempt, "time": time.time()}
        entries = [{**dataclasses.asdict(d), **moment, **({"step": steps} if d.kind == "pinned" else {})} for d in allowed]
        now = contract_of(spec)
        listed = {**(files or {}), **contract.files} if contract.files is not None else None
        contract = dataclasses.replace(
            contract, pinned=now.pinned, guarded=now.guarded, files=listed, allowed=(*contract.allowed, *entries)
        )
    write_contract(rundir, contract)
