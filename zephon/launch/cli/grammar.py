"""What may be typed: every verb with what it takes, every flag, every key=value argument of the launcher itself.

Parsers, ``--help``, completion and the refusals of what a verb does not take are all made from these three tables. Hydra's
spellings are kept (``-m``, ``--config-dir``, ``--cfg job``, ``--info``).
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable
from typing import Literal

DEFAULT_LIMIT = 2
DEFAULT_RUNS = "runs"
LEVELS = ("debug", "info", "warning", "error")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flag:
    """One flag. Without ``metavar`` and ``choices`` it takes no value; ``read`` makes the value from its text."""

    help: str
    short: str = ""
    metavar: str = ""
    choices: tuple[str, ...] = ()
    read: Callable[[str], object] = str
    hidden: bool = False

    @property
    def takes_value(self) -> bool:
        return bool(self.metavar or self.choices)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verb:
    """One verb.

    Args:
        help: what it does, in one line.
        call: the function that carries it out, as "module:function"; imported only when it is called.
        names: the runs that it takes, in order, the last one any number of times where it ends in "..."; none for a verb that
            works on no stored run.
        fields: which fields of the experiment it takes as key=value: none, those of a stored experiment, or all, with the
            config groups and ``conf=``.
        keys: the launcher's own key=value arguments that it takes.
        flags: the flags that it takes.
        example: a command line that works.
        ends: it ends or removes a run, so it is never suggested to a caller who typed another word.
    """

    help: str
    call: str = ""
    names: tuple[str, ...] = ()
    fields: Literal["none", "stored", "all"] = "none"
    keys: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    example: str = ""
    ends: bool = False


def at_least(lowest: int) -> Callable[[str], int]:
    """Reads a whole number that is not below ``lowest``."""

    def read(text: str) -> int:
        if not text.isdigit() or int(text) < lowest:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {lowest}")
        return int(text)

    return read


FLAGS = {
    "--help": Flag(short="-h", help="show this text"),
    "--detach": Flag(short="-d", help="return after the submit; the run goes on in the background"),
    "--multirun": Flag(short="-m", help="a sweep: commas separate alternatives, as in data.seed=1,2,3"),
    "--limit": Flag(metavar="N", read=at_least(1), help=f"with -m: how many runs at once (default: {DEFAULT_LIMIT})"),
    "--fail-fast": Flag(help="with -m: stop the other runs at the first failure"),
    "--config-dir": Flag(metavar="DIR", help="a directory with further config groups and experiments"),
    "--cfg": Flag(choices=("job",), help="print the composed experiment as YAML and stop"),
    "--info": Flag(help="the same with the source of each value"),
    "--worker": Flag(metavar="MODULE", help="what each rank runs (default: the trainer; resume: what the last attempt ran)"),
    "--json": Flag(help="print JSON"),
    "--step": Flag(
        metavar="N",
        read=at_least(0),
        help="the optimizer step, from 0; evaluate: the checkpoint after N steps (default: the newest)",
    ),
    "--document": Flag(metavar="DATASET:SHARD:ROW", help="the steps of a document, as --step names it"),
    "--text": Flag(help="also what the rows say"),
    "--follow": Flag(short="-f", help="go on until the run ends"),
    "--rank": Flag(metavar="N", read=at_least(0), help="only this global rank (default: all)"),
    "--level": Flag(choices=LEVELS, help=f"only lines of this level and above (default: {LEVELS[0]})"),
    "--tail": Flag(metavar="N", read=at_least(1), help="only the last N lines of what there is"),
    "--yes": Flag(short="-y", help="remove without a question"),
    "--no-wait": Flag(help="return at once (default: return when it is done)"),
    "--version": Flag(help="print the version"),
    "--out": Flag(metavar="FILE", help="where to write the page (default: report.html of the run directory)"),
    "--tasks": Flag(metavar="FILE", help="multiple-choice items, a JSON object a line (docs/evaluation.md)"),
    "--open": Flag(help="open the page in a browser"),
    "--completion": Flag(choices=("bash", "zsh"), help="print what to eval for completion in this shell"),
    "--complete": Flag(metavar="LINE", hidden=True, help="print what may follow a line; the shell's completion asks this"),
}
KEYS = {
    "runs": ("DIR", f"where run directories are (default: {DEFAULT_RUNS})"),
    "nodes": ("N", "the new number of nodes"),
    "allow": ("[FIELD,...]", "let guarded fields of an existing run change"),
    "fork": ("NAME", "start a new run from this run's newest checkpoint"),
    "detach": ("true", "the same as --detach"),
    "format": ("NAME", "of the files at URL, where their names do not say it"),
    "field": ("FIELD", "the field with the text, or a template: '{title} {body}' (default: text)"),
    "where": ("FILTER", "only documents that pass: \"lang == 'en'\""),
    "count": ("N", "how many documents are shown (default: 3)"),
    "workers": ("N", "processes of the full pass (default: all cores)"),
}
OWN_KEYS = (
    "allow",
    "fork",
    "detach",
    "format",
    "field",
    "where",
    "count",
    "workers",
)  # the others of KEYS are also fields of the experiment
VERBS = {
    "run": Verb(
        help="start a run, or go on with it (the default verb)",
        call="zephon.launch.cli.verbs:run",
        fields="all",
        keys=("allow", "fork", "detach"),
        flags=("--detach", "--multirun", "--limit", "--fail-fast", "--config-dir", "--cfg", "--info", "--worker"),
        example="zephon run conf=exp1 nodes=4",
    ),
    "plan": Verb(
        help="show what would be submitted, and which node counts are allowed",
        call="zephon.launch.cli.plan:plan",
        fields="all",
        keys=("allow",),
        flags=("--config-dir", "--json", "--worker"),
        example="zephon plan conf=exp1 nodes=4 scheduler=kubernetes",
    ),
    "status": Verb(
        help="show the state of a run",
        call="zephon.launch.cli.views:status",
        names=("RUN",),
        keys=("runs",),
        flags=("--json",),
        example="zephon status exp1",
    ),
    "logs": Verb(
        help="show the logs of all ranks, merged by time",
        call="zephon.launch.cli.logs:logs",
        names=("RUN",),
        keys=("runs",),
        flags=("--follow", "--rank", "--level", "--tail"),
        example="zephon logs exp1 -f --level warning --tail 20",
    ),
    "rescale": Verb(
        help="change the number of nodes of a running run",
        call="zephon.launch.cli.verbs:rescale",
        names=("RUN",),
        keys=("nodes", "runs"),
        flags=("--no-wait",),
        example="zephon rescale exp1 nodes=2",
    ),
    "stop": Verb(
        help="finish the step, save and stop",
        call="zephon.launch.cli.verbs:stop",
        names=("RUN",),
        keys=("runs",),
        flags=("--no-wait",),
        example="zephon stop exp1",
        ends=True,
    ),
    "resume": Verb(
        help="go on with a stopped or failed run",
        call="zephon.launch.cli.verbs:resume",
        names=("RUN",),
        fields="stored",
        keys=("runs", "allow", "fork", "detach"),
        flags=("--detach", "--config-dir", "--worker"),
        example="zephon resume exp1 nodes=1",
    ),
    "list": Verb(
        help="show all runs, the newest first",
        call="zephon.launch.cli.views:list_runs",
        keys=("runs",),
        flags=("--json",),
        example="zephon list runs=/mnt/runs",
    ),
    "doctor": Verb(
        help="check this machine, the data and the scheduler",
        call="zephon.launch.cli.doctor:doctor",
        fields="all",
        flags=("--config-dir",),
        example="zephon doctor conf=exp1",
    ),
    "verify": Verb(
        help="compare ledgers: was every global batch the same?",
        call="zephon.launch.cli.verify:verify",
        names=("RUN", "OTHER"),
        keys=("runs",),
        example="zephon verify exp1 exp1-on-8-nodes",
    ),
    "diff": Verb(
        help="show what differs between the data of two runs, and the first step that differs",
        call="zephon.launch.cli.diff:diff",
        names=("RUN", "OTHER"),
        keys=("runs",),
        flags=("--json",),
        example="zephon diff exp1 exp2",
    ),
    "report": Verb(
        help="write one HTML page with all that a run has left, or several runs beside each other",
        call="zephon.launch.cli.report:report",
        names=("RUN", "OTHER ..."),
        keys=("runs",),
        flags=("--out", "--open"),
        example="zephon report exp1 exp1-on-8-nodes --open",
    ),
    "data": Verb(
        help="look at data before training: list them, show documents, check all of them",
        call="zephon.launch.cli.data:data",
        names=("ls|head|check", "URL"),
        fields="all",
        keys=("format", "field", "where", "count", "workers"),
        flags=("--config-dir", "--json"),
        example="zephon data check conf=exp1",
    ),
    "trace": Verb(
        help="show the documents of a step, recomputed from the run's directory and data",
        call="zephon.launch.cli.trace:trace_run",
        names=("RUN",),
        keys=("runs",),
        flags=("--step", "--document", "--text", "--json"),
        example="zephon trace exp1 --step 100 --text",
    ),
    "evaluate": Verb(
        help="score a run's checkpoint on multiple choice",
        call="zephon.launch.cli.evaluate:evaluate",
        names=("RUN",),
        keys=("runs",),
        flags=("--tasks", "--step", "--json"),
        example="zephon evaluate exp1 --tasks hellaswag.jsonl",
    ),
    "demo": Verb(
        help="train on 4, 2 and 1 nodes, and compare every step with an uninterrupted run",
        call="zephon.launch.cli.demo:demo",
        fields="all",
        keys=("runs",),
        example="zephon demo trainer.steps=20",
    ),
    "rm": Verb(
        help="remove a run that has ended, with its checkpoints and logs",
        call="zephon.launch.cli.remove:remove",
        names=("RUN",),
        keys=("runs",),
        flags=("--yes",),
        example="zephon rm exp1",
        ends=True,
    ),
}
AS_FLAGS = {"help": "--help", "version": "--version"}  # typed as verbs: `zephon help stop` is `zephon stop --help`
AS_FLAGS = {"help": "--help", "version": "--version"}  # typed as verbs: `zephon help stop` is `zephon stop --help`
MEANT = {"start": "run", "launch": "run", "train": "run", "ls": "list", "ps": "list", "log": "logs", "show": "status"}
NO_VERB = Verb(help="elastic, reproducible training runs", flags=("--config-dir", "--version", "--completion", "--complete"))


def verb_named(verb: str) -> Verb:
    """What a verb takes; an empty name is what belongs to none."""
    return VERBS[verb] if verb else NO_VERB


def flags_of(verb: str) -> tuple[str, ...]:
    """All flags of a verb."""
    return ("--help", *verb_named(verb).flags)


def command(verb: str) -> str:
    """The verb as it is typed."""
    return f"zephon {verb}".rstrip()
