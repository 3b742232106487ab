"""argv read by one argparse parser per verb: ``zephon [VERB] [RUN] [key=value ...] [flags]`` becomes ``Arguments``.

What a verb would ignore is refused, with the verbs that take it.
"""

from __future__ import annotations

import argparse
import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from typing import NoReturn

from zephon.errors import ConfigError, nearest
from zephon.launch.cli.grammar import (
    AS_FLAGS,
    DEFAULT_RUNS,
    FLAGS,
    LEVELS,
    MEANT,
    OWN_KEYS,
    VERBS,
    Flag,
    command,
    flags_of,
    verb_named,
)

_ALONE = ("--help", "--version", "--completion", "--complete")
_LONG = {flag.short: name for name, flag in FLAGS.items() if flag.short}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments:
    """What was typed.

    Args:
        verb: one of ``VERBS``; empty for what belongs to no verb, such as ``--version``.
        names: arguments without ``=``: runs.
        overrides: ``key=value`` arguments for the composition.
        own: the values of the launcher's own arguments by key.
        line: all of it as it was typed.

    All others are flags.
    """

    verb: str
    names: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    own: Mapping[str, str] = dataclasses.field(default_factory=dict)
    help: bool = False
    multirun: bool = False
    limit: int | None = None
    fail_fast: bool = False
    config_dir: str | None = None
    cfg: str | None = None
    info: bool = False
    worker: str | None = None
    json: bool = False
    step: int | None = None
    document: str | None = None
    text: bool = False
    follow: bool = False
    rank: int | None = None
    level: str = LEVELS[0]
    tail: int | None = None
    yes: bool = False
    no_wait: bool = False
    tasks: str | None = None
    out: str | None = None
    open: bool = False
    version: bool = False
    completion: str | None = None
    complete: str | None = None
    detach: bool = False
    line: str = dataclasses.field(default="", compare=False)

    @property
    def allow(self) -> list[str]:
        return [name.strip() for name in self.own.get("allow", "").strip("[]").split(",") if name.strip()]

    @property
    def fork(self) -> str | None:
        return self.own.get("fork")

    @property
    def runs(self) -> str:
        return self.own.get("runs", DEFAULT_RUNS)


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """One line per flag; a narrow terminal folds it by itself."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=40, width=160)


class _Parser(argparse.ArgumentParser):
    """An argparse parser whose refusals are errors of three parts."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(
            f"{self.prog}: {message.removeprefix('argument ')}",
            follows="the flag would have no effect",
            remedy=f"see {self.prog} --help",
        )


def parser(verb: str, *, usage: str = "", epilog: str = "") -> argparse.ArgumentParser:
    """The parser of one verb; of what belongs to none for an empty name."""
    built = _Parser(
        prog=command(verb),
        usage=usage or None,
        description=verb_named(verb).help,
        epilog=epilog,
        formatter_class=_Formatter,
        add_help=False,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,  # defaults are those of Arguments
    )
    built.add_argument("arguments", nargs="*", default=[], help=argparse.SUPPRESS)
    for name in flags_of(verb):
        flag = FLAGS[name]
        spellings = (flag.short, name) if flag.short else (name,)
        text = argparse.SUPPRESS if flag.hidden else flag.help
        if flag.choices:
            built.add_argument(*spellings, choices=flag.choices, help=text)
        elif flag.takes_value:
            built.add_argument(*spellings, metavar=flag.metavar, type=flag.read, help=text)
        else:
            built.add_argument(*spellings, action="store_true", help=text)
    return built


def parse(argv: Sequence[str]) -> Arguments:
    """Reads argv.

    Raises:
        ConfigError: an unknown verb or flag, one that the verb does not take, or a flag without its value.
    """
    verb, tokens = _split_verb(argv)
    namespace, unknown = parser(verb).parse_known_intermixed_args(tokens)
    for token in unknown:
        raise _not_taken_flag(verb, token, tokens)
    flags = vars(namespace)
    typed: list[str] = flags.pop("arguments")
    if flags.get("help"):
        return Arguments(verb=verb, **flags)
    own: dict[str, str] = {}
    for text in typed:
        key, equals, value = text.partition("=")
        if equals and key in verb_named(verb).keys:
            if key in own:
                raise ConfigError(
                    f"{key}= is given twice: {own[key]!r} and {value!r}",
                    follows="one of the two would be ignored",
                    remedy="give it once",
                )
            own[key] = value
    overrides = tuple(text for text in typed if _is_override(text) and text.partition("=")[0] not in own)
    names = tuple(text for text in typed if not _is_override(text))
    detach = flags.pop("detach", False) or own.get("detach", "false").lower() in ("true", "1", "yes")
    line = shlex.join(["zephon", *argv])
    arguments = Arguments(verb=verb, names=names, overrides=overrides, own=own, detach=detach, line=line, **flags)
    _check_names(arguments)
    _check_keys(arguments)
    _check_sweep(arguments)
    return arguments


def flag_named(token: str) -> Flag | None:
    """The flag of one spelling, without a value."""
    return FLAGS.get(_LONG.get(token, token))


def verb_index(tokens: Sequence[str]) -> int | None:
    """Where the verb would be: the first token that is neither a flag nor a flag's value, if there is one."""
    value_follows = False
    for index, token in enumerate(tokens):
        if value_follows:
            value_follows = False
        elif token.startswith("-"):
            flag = flag_named(token)
            value_follows = flag is not None and flag.takes_value
        else:
            return index
    return None


def _split_verb(argv: Sequence[str]) -> tuple[str, list[str]]:
    """The verb and all other tokens. Without one it is ``run``, or none for flags such as ``--version``."""
    tokens = list(argv)
    index = verb_index(tokens)
    if index is None:
        spelled = {_LONG.get(token, token).partition("=")[0] for token in tokens}
        return ("" if spelled & set(_ALONE) else "run"), tokens
    if _is_override(tokens[index]):
        return "run", tokens
    if index and tokens[index] not in VERBS and flag_named(tokens[index - 1]) is None:
        return "run", tokens  # what stands behind an unknown flag is its value; the flag is refused
    verb = tokens.pop(index)
    if verb in AS_FLAGS:
        tokens.append(AS_FLAGS[verb])
        return _split_verb(tokens) if verb_index(tokens) is not None else ("", tokens)
    if verb not in VERBS:
        raise _no_verb(verb)
    return verb, tokens


def _no_verb(typed: str) -> ConfigError:
    """Names the nearest verb, but never one that ends or removes a run: a caller who repeats the line must not lose it."""
    harmless = [verb for verb in VERBS if not VERBS[verb].ends]
    near = f"did you mean {MEANT[typed]!r}?" if typed in MEANT else nearest(typed, harmless)
    listed = f" (verbs: {', '.join(sorted(VERBS))})"
    return ConfigError(
        f"{typed!r} is not a verb",
        follows="there is nothing to do",
        remedy=(near if near.startswith("did you mean") else "") + listed + "; a run starts with: zephon run conf=exp1",
    )


def _is_override(text: str) -> bool:
    """Not a path or URL that holds an equals sign, as those of partitions do: s3://data/day=7/."""
    key = text.partition("=")[0]
    return ("=" in text or text.startswith("~")) and "://" not in key and not key.startswith(("/", "./", "../", "~/"))


def _not_taken_flag(verb: str, token: str, tokens: Sequence[str]) -> ConfigError:
    typed, equals, value = token.partition("=")
    name = _LONG.get(typed, typed)
    takers = [command(other) for other in ("", *VERBS) if name in flags_of(other)]
    if takers:
        remedy = f"leave it out; {typed} is taken by {', '.join(takers)}"
    elif key := _key_named(verb, typed.lstrip("-").replace("-", "_")):
        follower = next(iter(tokens[tokens.index(token) + 1 :]), "VALUE") if not equals else value
        remedy = f"fields are written key=value: {key}={follower}"
    else:
        remedy = nearest(typed, [flag for flag in flags_of(verb) if not FLAGS[flag].hidden])
    return ConfigError(f"{command(verb)} does not take {typed}", follows="it would have no effect", remedy=remedy)


def _key_named(verb: str, word: str) -> str:
    """The key=value argument of a verb whose name, or whose last part, is this word; empty where there is none."""
    taken = verb_named(verb)
    if word in taken.keys:
        return word
    if taken.fields == "none":
        return ""
    from zephon.launch.config.schema import fields_named  # the spec: only a refusal needs it here

    return next(iter(fields_named(word)), "")


def _check_names(arguments: Arguments) -> None:
    names, allowed = arguments.names, verb_named(arguments.verb).names
    if not allowed and names:
        raise _no_name(arguments.verb, names[0], arguments.overrides)
    if len(names) > len(allowed) and not allowed[-1].endswith("..."):
        takes = "one run" if len(allowed) == 1 else "one or two runs" if allowed[0] == "RUN" else " and ".join(allowed)
        raise ConfigError(
            f"{command(arguments.verb)} takes {takes}, not {', '.join(names)}",
            follows="the others would be ignored",
            remedy=f"name {takes}",
        )


def _no_name(verb: str, name: str, overrides: Sequence[str]) -> ConfigError:
    chosen = any(text.startswith("conf=") for text in overrides)
    first = f"set a field: {name}=VALUE" if chosen else f"name an experiment: zephon {verb} conf={name}"
    if name in VERBS:
        first = f"the verb comes first: zephon {' '.join([name, *overrides])}"
    elif verb in ("", "list"):
        first = "leave it out"
    then = "go on with a run: zephon resume" if verb == "run" else "see the state of a run: zephon status"
    return ConfigError(
        f"{command(verb)} takes key=value arguments, not {name!r}",
        follows="it would be ignored",
        remedy=first + ("" if name in VERBS else f"; or {then} {name}"),
    )


def _check_keys(arguments: Arguments) -> None:
    """Refuses a key=value argument that the verb would ignore."""
    unused = [text for text in arguments.overrides if not _takes(arguments.verb, text.partition("=")[0])]
    if unused:
        key, keys = unused[0].partition("=")[0], verb_named(arguments.verb).keys
        takers = ", ".join(command(other) for other in VERBS if _takes(other, key))
        fields = verb_named(arguments.verb).fields != "none"
        own = "" if fields else f"; {command(arguments.verb)} takes {' and '.join(f'{name}=' for name in keys)} alone"
        if (near := nearest(key, keys)).startswith("did you mean") and not fields:
            own += f"; {near}"
        raise ConfigError(
            f"{command(arguments.verb)} does not take {unused[0]!r}",
            follows="it would be ignored",
            remedy=f"leave it out; {key}= is taken by {takers}{own}",
        )


def _takes(verb: str, key: str) -> bool:
    """Whether a verb takes an argument ``key=``: as one of its own, or as a field of the experiment."""
    taken = verb_named(verb)
    return key in taken.keys or (taken.fields != "none" and key not in OWN_KEYS)


def _check_sweep(arguments: Arguments) -> None:
    """Flags of a sweep belong to ``-m``, and a sweep takes nothing that is meant for one run."""
    if arguments.multirun:
        typed = {
            "--cfg": arguments.cfg is not None,
            "--info": arguments.info,
            "--detach": arguments.detach,
            **{f"{key}=": key in arguments.own for key in ("allow", "fork")},
        }
        unused, remedy = [name for name, given in typed.items() if given], "leave it out, or leave out -m"
    else:
        typed = {"--limit": arguments.limit is not None, "--fail-fast": arguments.fail_fast}
        unused, remedy = [name for name, given in typed.items() if given], "leave it out, or add -m"
    if unused:
        how = "with" if arguments.multirun else "without"
        raise ConfigError(f"{unused[0]} has no effect {how} -m", follows="it would be ignored", remedy=remedy)
