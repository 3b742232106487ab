"""What ``--help`` prints: of a verb its arguments, flags, config groups and an example; without one all verbs on a screen."""

from __future__ import annotations

from collections.abc import Iterable

from zephon.launch.cli.arguments import parser
from zephon.launch.cli.grammar import FLAGS, KEYS, VERBS, flags_of
from zephon.launch.config.packaged import groups_in

USAGE = """zephon: elastic, reproducible training runs

usage: zephon [verb] [RUN] [conf=EXPERIMENT] [key=value ...] [flags]      (the same: python -m zephon.launch)

examples
  zephon conf=exp1 nodes=4                     start on 4 nodes and follow; Ctrl-C saves and stops (a cluster's run goes on)
  zephon rescale exp1 nodes=2                  change the size of a running run; no step is lost
  zephon resume exp1 nodes=1                   go on with a stopped run, on another size if you like

verbs (each has its own help: zephon help VERB; also: zephon version)
{verbs}"""
_RUN = "a run: its name below runs=, or a path; without one, the run started last"
_NAMES = {
    "RUN": _RUN,
    "OTHER": "a second run",
    "OTHER ...": "further runs",
    "ls|head|check": "list shards and sizes; show the first documents as they will be read; read all and report",
    "URL": "a directory, file, glob or URL; without it, the datasets of conf=",
}
_FIELD = {
    "all": "a field of the experiment, such as trainer.steps=100; zephon run --cfg job shows all of them",
    "stored": "a field of the experiment that changes, such as trainer.steps=100",
}


def usage() -> str:
    """What a bare ``zephon`` prints: usage, examples and verbs."""
    return f"{_overview()}\n\nall of it: zephon --help"


def help_text(verb: str, config_dir: str | None = None) -> str:
    """The help of one verb, with the config groups of this installation and the user's; of all verbs for an empty name."""
    if verb:
        return _verb_help(verb, config_dir)
    flags = _columns((_spelled(name), FLAGS[name].help) for name in flags_of("") if not FLAGS[name].hidden)
    return f"{_overview()}\n\nflags\n{flags}\n\n{_groups(config_dir)}"


def _overview() -> str:
    return USAGE.format(verbs=_columns((name, verb.help) for name, verb in VERBS.items()))


def _verb_help(name: str, config_dir: str | None) -> str:
    verb = VERBS[name]
    rows = [(taken, _NAMES[taken]) for taken in verb.names]
    if verb.fields == "all":
        rows.append(("conf=NAME", "an experiment, or a file: conf=./my/exp.yaml"))
    if verb.fields != "none":
        rows.append(("key=value", _FIELD[verb.fields]))
    if verb.fields == "stored":
        rows.append(("stages=NAME", "another list of stages"))
    rows += [(f"{key}={KEYS[key][0]}", KEYS[key][1]) for key in verb.keys]
    typed = " ".join(f"[{left} ...]" if left == "key=value" else f"[{left}]" for left, _ in rows)
    epilog = [f"arguments:\n{_columns(rows)}", f"example:\n  {verb.example}"]
    if verb.fields == "all":
        epilog.append(_groups(config_dir))
    return parser(name, usage=f"zephon {name} {typed} [flags]", epilog="\n\n".join(epilog)).format_help().rstrip()


def _groups(config_dir: str | None) -> str:
    groups = groups_in(config_dir).items()
    rows = (("conf" if name == "experiments" else name, ", ".join(options)) for name, options in groups)
    return f"config groups (choose with group=option, set a field with group.field=value)\n{_columns(rows)}"


def _spelled(name: str) -> str:
    flag = FLAGS[name]
    value = flag.metavar or ("{" + ",".join(flag.choices) + "}" if flag.choices else "")
    return f"{flag.short + ', ' if flag.short else ''}{name} {value}".rstrip()


def _columns(rows: Iterable[tuple[str, str]]) -> str:
    listed = list(rows)
    width = max(len(left) for left, _ in listed) + 2
    return "\n".join(f"  {left:<{width}}{right}" for left, right in listed)
