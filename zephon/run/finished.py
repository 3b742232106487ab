"""Whether a run is done: a fact of its files, whatever the exit statuses of its processes say."""

from __future__ import annotations

from zephon.run.checkpoints import newest_checkpoint
from zephon.run.data_end import ended_at
from zephon.run.directory import RunDir
from zephon.run.ledger import steps_recorded


def missing_at_end(rundir: RunDir, steps: int) -> str:
    """What a run of that many steps lacks before it is done; empty where it is.

    Done is: the ledger's newest line is of the last step, or of the one at which the data ended, and there is a complete
    checkpoint after it.
    """
    recorded, saved = steps_recorded(rundir), newest_checkpoint(rundir)
    last = recorded if recorded == ended_at(rundir) else steps
    if recorded < last:
        return f"the ledger has {recorded} of {last} steps"
    if saved < last:
        return f"the newest complete checkpoint is {f'of step {saved}' if saved >= 0 else 'none'} and the last step is {last}"
    return ""
