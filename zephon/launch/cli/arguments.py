"""argv -> verb, words, flags. Hydra's spellings are kept (``-m``, ``--config-dir``, ``--cfg job``, ``--info``, ``--help``)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from zephon.errors import ConfigError, nearest

VERBS = {
    "run": "start a run, or go on with it (the default verb)",
    "plan": "show what would be submitted, and which node counts are allowed",
    "status": "how a run stands",
    "logs": "logs of all ranks, merged by time",
    "rescale": "change the number of nodes of a running run",
    "stop": "finish the step, save and stop",
    "resume": "go on with a stopped or failed run",
    "list": "all runs",
    "doctor": "check this machine, the data and the scheduler",
    "verify": "compare ledgers: was every global batch the same?",
}
FLAGS = {
    "--help": False,
    "-h": False,
    "--detach": False,
    "-d": False,
    "--multirun": False,
    "-m": False,
    "--info": False,
    "--json": False,
    "--follow": False,
    "-f": False,
    "--version": False,
    "--no-wait": False,
    "--config-dir": True,
    "--cfg": True,
    "--rank": True,
    "--level": True,
    "--limit": True,
    "--fail-fast": False,
    "--worker": True,
    "--completion": True,
    "--complete": True,
}
_SAME = {"-h": "--help", "-d": "--detach", "-m": "--multirun", "-f": "--follow"}
_OWN_WORDS = ("allow", "fork", "detach")
_NAMELESS = ("run", "plan", "list", "doctor")
_TAKES = {"status": "runs", "logs": "runs", "list": "runs", "stop": "runs", "verify": "runs", "rescale": "nodes runs"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments:
    """What was typed.

    Args:
        verb: one of ``VERBS``.
        names: words without ``=``: runs.
        words: ``key=value`` words for the composition.
        flags: long flag -> value, "" for those that take none.
        own: ``allow=``, ``fork=`` and ``detach=``, which are the launcher's own.
    """

    verb: str
    names: tuple[str, ...]
    words: tuple[str, ...]
    flags: dict[str, str]
    own: dict[str, str]

    def has(self, flag: str) -> bool:
        return flag in self.flags

    @property
    def allow(self) -> list[str]:
        return [name.strip() for name in self.own.get("allow", "").strip("[]").split(",") if name.strip()]

    @property
    def fork(self) -> str | None:
        return self.own.get("fork")

    @property
    def detach(self) -> bool:
        return self.has("--detach") or self.own.get("detach", "false").lower() in ("true", "1", "yes")

    def word(self, key: str, default: str) -> str:
        """The value of a plain word, when only one is of interest."""
        return next((w.split("=", 1)[1] for w in self.words if w.split("=", 1)[0] == key), default)

    def without(self, *keys: str) -> list[str]:
        """The words but those of some keys."""
        return [w for w in self.words if w.split("=", 1)[0] not in keys]


def parse(argv: Sequence[str]) -> Arguments:
    """Sorts argv.

    Raises:
        ConfigError: an unknown verb or flag, or a flag without its value.
    """
    tokens = list(argv)
    verb = ""
    names: list[str] = []
    words: list[str] = []
    flags: dict[str, str] = {}
    own: dict[str, str] = {}
    while tokens:
        token = tokens.pop(0)
        if token.startswith("-") and len(token) > 1:
            name, equals, value = token.partition("=")
            flag = _flag(name)
            flags[flag] = _flag_value(flag, equals, value, tokens)
        elif not verb and not names and not words and "=" not in token and not token.startswith("~"):
            verb = _verb(token)
        elif "=" in token or token.startswith("~"):
            key = token.split("=", 1)[0]
            if key in _OWN_WORDS:
                own[key] = token.split("=", 1)[1]
            else:
                words.append(token)
        else:
            names.append(token)
    return Arguments(verb=verb or "run", names=tuple(names), words=tuple(words), flags=flags, own=own)


def check_words(arguments: Arguments) -> None:
    """Refuses what a verb would pass over in silence.

    Raises:
        ConfigError: a name for a verb that works on no stored run, or a field for one that sets none.
    """
    verb, words = arguments.verb, arguments.words
    if verb in _NAMELESS and arguments.names:
        raise _no_name(verb, arguments.names[0], words)
    unknown = arguments.without(*_TAKES[verb].split()) if verb in _TAKES else []
    if unknown:
        raise ConfigError(
            f"`{verb}` does not take {unknown[0]!r}",
            follows="it would be ignored",
            remedy=f"leave it out; of fields, {verb} takes {' and '.join(f'{key}=' for key in _TAKES[verb].split())} alone",
        )


def _no_name(verb: str, name: str, words: Sequence[str]) -> ConfigError:
    chosen = any(word.startswith("conf=") for word in words)
    first = f"set a field: {name}=VALUE" if chosen else f"name an experiment: zephon {verb} conf={name}"
    if name in VERBS:
        first = f"the verb comes first: zephon {' '.join([name, *words])}"
    elif verb == "list":
        first = "leave it out"
    then = "go on with a run: zephon resume" if verb == "run" else "see how a run stands: zephon status"
    return ConfigError(
        f"`{verb}` takes key=value words, not {name!r}",
        follows="it would be ignored",
        remedy=first + ("" if name in VERBS else f"; or {then} {name}"),
    )


def _verb(token: str) -> str:
    if token not in VERBS:
        raise ConfigError(
            f"{token!r} is not a verb",
            follows="there is nothing to do",
            remedy=f"{nearest(token, VERBS, kind='verbs')}; a run starts with: zephon run conf=exp1",
        )
    return token


def _flag(name: str) -> str:
    if name not in FLAGS:
        raise ConfigError(
            f"{name} is not a flag",
            follows="it would have no effect",
            remedy=nearest(name, [f for f in FLAGS if f.startswith("--")]),
        )
    return _SAME.get(name, name)


def _flag_value(name: str, equals: str, value: str, tokens: list[str]) -> str:
    if not FLAGS[name]:
        if equals:
            raise ConfigError(f"{name} takes no value", follows=f"{value!r} would be ignored", remedy=f"write {name} alone")
        return ""
    if equals:
        return value
    if not tokens or tokens[0].startswith("-"):
        raise ConfigError(f"{name} needs a value", follows="it would have no effect", remedy=f"write {name} VALUE")
    return tokens.pop(0)
