"""``contract.json``: what a run has promised. The launcher writes it with every start; launch/contract.py compares it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal

from zephon.fastjson import Json
from zephon.run.directory import RunDir

Kind = Literal["pinned", "guarded"]
VERSION = 1
_FILE = "contract.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contract:
    """What a run has promised.

    Args:
        pinned: values that never change, by field.
        guarded: values that change only where ``allow=`` names their field.
        allowed: the changes that were accepted, each with field, kind, run, now, attempt and time; one of a phase that had not
            begun also with the step at which it was made.
        files: ``{files, size, sha256}`` of each dataset; None where the launcher does not see the data.
        token_ids: the ids that the tokenizer gives for its parity text, as a SHA-256; None where the launcher does not see the
            tokenizer, and for one that has no text of its own, such as ``bytes``.
        parent: run, step and changes of a fork; None for any other run.
    """

    pinned: Mapping[str, object]
    guarded: Mapping[str, object]
    allowed: tuple[Json, ...] = ()
    files: Json | None = None
    token_ids: str | None = None
    parent: Json | None = None

    def fields_of(self, kind: Kind) -> Mapping[str, object]:
        return self.pinned if kind == "pinned" else self.guarded


def has_contract(rundir: RunDir) -> bool:
    """Whether the run was ever started."""
    return rundir.exists(_FILE)


def read_contract(rundir: RunDir) -> Contract:
    """Raises FileNotFoundError: the run was never started."""
    data = rundir.read_json(_FILE)
    fields = {field.name: data[field.name] for field in dataclasses.fields(Contract) if field.name in data}
    return Contract(**{**fields, "allowed": tuple(fields.get("allowed", ()))})


def write_contract(rundir: RunDir, contract: Contract) -> None:
    rundir.write_json(_FILE, data={"version": VERSION, **dataclasses.asdict(contract)})
