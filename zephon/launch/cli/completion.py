"""Completion for bash and zsh, without Hydra's (which cannot complete ``python -m``).

    eval "$(zephon --completion bash)"        # or zsh

The shell asks ``zephon --complete "LINE"``; the answer is one candidate per line: verbs, ``conf=`` experiments, groups,
fields, runs, flags and their values, from the same tables as the parsers. It composes nothing and imports neither Hydra nor
TorchX.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from zephon.launch.cli.arguments import flag_named, verb_index
from zephon.launch.cli.grammar import AS_FLAGS, DEFAULT_RUNS, FLAGS, VERBS, Verb, flags_of

BASH = """_zephon() {
  local IFS=$'\\n' current
  mapfile -t COMPREPLY < <(zephon --complete "${COMP_LINE:0:COMP_POINT}" 2>/dev/null)
  # bash cuts arguments at every "=": what is before the last one must not be inserted again
  current="${COMP_LINE:0:COMP_POINT}"; current="${current##* }"
  if [[ "$current" == *=* ]]; then COMPREPLY=("${COMPREPLY[@]#"${current%=*}="}"); fi
  [[ ${#COMPREPLY[@]} -eq 1 && "${COMPREPLY[0]}" == *[=.] ]] && compopt -o nospace
  return 0
}
complete -F _zephon zephon
"""
ZSH = """#compdef zephon
_zephon() {
  local -a candidates
  candidates=("${(@f)$(zephon --complete "${BUFFER[1,CURSOR]}" 2>/dev/null)}")
  compadd -S '' -- $candidates
}
compdef _zephon zephon
"""


def script(shell: str) -> str:
    """The text to evaluate in a shell: one of ``bash`` and ``zsh``."""
    return {"bash": BASH, "zsh": ZSH}[shell]


def candidates(line: str) -> list[str]:
    """What may follow at the end of the line, sorted."""
    try:
        tokens = shlex.split(line)
    except ValueError:  # an open quote
        return []
    current = "" if not tokens or line.endswith(" ") else tokens[-1]
    before = tokens[1 : len(tokens) if not current else -1]
    return sorted(candidate for candidate in _possible(current, before) if candidate.startswith(current))


def _possible(current: str, before: list[str]) -> Iterable[str]:
    index = verb_index(before)
    verb = before[index] if index is not None and before[index] in VERBS else "run"
    if before and (flag := flag_named(before[-1])) is not None and flag.takes_value:
        return flag.choices
    if current.startswith("-"):
        flags = flags_of(verb) + (flags_of("") if index is None else ())
        return {name for name in flags if not FLAGS[name].hidden}
    config_dir = next((before[i + 1] for i, token in enumerate(before[:-1]) if token == "--config-dir"), None)
    if "=" in current:
        return _values(current.partition("=")[0], config_dir)
    verbs = list(VERBS) if before in ([], ["help"]) else []
    if not before:
        verbs += AS_FLAGS
    if before == ["help"]:
        return verbs
    return [*verbs, *(_runs(before) if VERBS[verb].names[:1] == ("RUN",) else []), *_keys(VERBS[verb], config_dir)]


def _keys(verb: Verb, config_dir: str | None) -> list[str]:
    from zephon.launch.config.packaged import groups_in
    from zephon.launch.config.schema import field_names

    keys = list(verb.keys)
    if verb.fields != "none":
        keys += field_names()
    if verb.fields == "stored":
        keys.append("stages")
    elif verb.fields == "all":
        keys += ["conf" if group == "experiments" else group for group in groups_in(config_dir)]
    return [f"{key}=" for key in dict.fromkeys(keys)]


def _values(key: str, config_dir: str | None) -> list[str]:
    from zephon.launch.config.packaged import groups_in
    from zephon.launch.config.schema import choices_of

    options = groups_in(config_dir).get("experiments" if key == "conf" else key) or choices_of(key)
    return [f"{key}={option}" for option in options]


def _runs(before: list[str]) -> list[str]:
    from zephon.launch.status import run_names

    given = (token.partition("=")[2] for token in before if token.startswith("runs="))
    return run_names(next(given, DEFAULT_RUNS))
