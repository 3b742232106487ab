"""Completion for bash and zsh, without Hydra's (which cannot complete ``python -m``).

    eval "$(zephon --completion bash)"        # or zsh

The shell asks ``zephon --complete "LINE"``; the answer is one candidate per line: verbs, ``conf=`` experiments, groups,
fields, runs, flags. It composes nothing and imports neither torch nor torchx.
"""

from __future__ import annotations

import shlex

from zephon.errors import ConfigError, nearest
from zephon.launch.cli.arguments import FLAGS, VERBS

BASH = """_zephon() {
  local IFS=$'\\n' word
  mapfile -t COMPREPLY < <(zephon --complete "${COMP_LINE:0:COMP_POINT}" 2>/dev/null)
  # bash has cut the word at every "=": what stands before the last one must not be inserted again
  word="${COMP_LINE:0:COMP_POINT}"; word="${word##* }"
  if [[ "$word" == *=* ]]; then COMPREPLY=("${COMPREPLY[@]#"${word%=*}="}"); fi
  [[ ${#COMPREPLY[@]} -eq 1 && "${COMPREPLY[0]}" == *[=.] ]] && compopt -o nospace
  return 0
}
complete -F _zephon zephon
"""
ZSH = """#compdef zephon
_zephon() {
  local -a found
  found=("${(@f)$(zephon --complete "${BUFFER[1,CURSOR]}" 2>/dev/null)}")
  compadd -S '' -- $found
}
compdef _zephon zephon
"""
_RUN_VERBS = ("status", "logs", "rescale", "stop", "resume", "verify")


def script(shell: str) -> str:
    """The text to evaluate in a shell.

    Raises:
        ConfigError: neither bash nor zsh.
    """
    scripts = {"bash": BASH, "zsh": ZSH}
    if shell not in scripts:
        raise ConfigError(
            f"--completion {shell}: no such shell", follows="nothing could be completed", remedy=nearest(shell, scripts)
        )
    return scripts[shell]


def candidates(line: str) -> list[str]:
    """What may stand where the line ends, sorted."""
    try:
        words = shlex.split(line)
    except ValueError:  # an open quote
        return []
    current = "" if not words or line.endswith(" ") else words[-1]
    before = words[1 : len(words) if not current else -1]
    return sorted(found for found in _possible(current, before) if found.startswith(current))


def _possible(current: str, before: list[str]) -> list[str]:
    if current.startswith("-"):
        return [flag for flag in FLAGS if flag.startswith("--")]
    verb = before[0] if before and before[0] in VERBS else "run"
    config_dir = next((before[i + 1] for i, word in enumerate(before[:-1]) if word == "--config-dir"), None)
    if "=" in current:
        return _values(current.split("=", 1)[0], config_dir)
    found = list(VERBS) if not before else []
    if verb in _RUN_VERBS:
        found += _runs(before)
    if verb in ("run", "plan", "doctor", "resume"):
        found += _keys(verb, config_dir)
    if verb == "rescale":
        found += ["nodes="]
    return found


def _keys(verb: str, config_dir: str | None) -> list[str]:
    from zephon.launch.config.schema import field_names

    fields = [f"{name}=" for name in field_names()]
    if verb == "resume":
        return [*fields, "allow=", "fork="]
    from zephon.launch.config.compose import groups_in

    groups = [f"{'conf' if group == 'experiments' else group}=" for group in groups_in(config_dir)]
    return [*fields, *groups, "allow=", "fork="]


def _values(key: str, config_dir: str | None) -> list[str]:
    from zephon.launch.config.compose import groups_in
    from zephon.launch.config.schema import choices_of

    groups = groups_in(config_dir)
    options = groups.get("experiments" if key == "conf" else key) or choices_of(key)
    return [f"{key}={option}" for option in options]


def _runs(before: list[str]) -> list[str]:
    from zephon.launch.status import run_names

    runs = next((word.split("=", 1)[1] for word in before if word.startswith("runs=")), "runs")
    return run_names(runs)
