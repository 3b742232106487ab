"""``--help``: verbs, groups, three examples, on one screen."""

from __future__ import annotations

from zephon.launch.cli.arguments import VERBS

HELP = """zephon: elastic, reproducible training runs

usage: zephon [verb] [RUN] [conf=EXPERIMENT] [key=value ...] [flags]      (the same: python -m zephon.launch)

examples
  zephon conf=exp1 nodes=4                     start on 4 nodes and follow; Ctrl-C saves and stops (a cluster's run goes on)
  zephon rescale exp1 nodes=2                  change the size of a running run; no step is lost
  zephon resume exp1 nodes=1                   go on with a stopped run, on another size if you like

verbs
{verbs}

config groups (choose with group=option, set a field with group.field=value)
{groups}

flags
  -d, --detach           start and return; the run goes on in the background
  -m, --multirun         a sweep: commas separate alternatives, as in seed=1,2,3; --limit N runs at once, --fail-fast
      --config-dir DIR   further groups and experiments
      --cfg job          print the composed experiment and stop;  --info  also where each value came from
      --json             status, list and plan as JSON
  -f, --follow           logs: until the run ends;  --rank N,  --level warning
      --no-wait          stop and rescale: return at once
      --completion SHELL prints what to eval for completion in bash or zsh

words of the launcher itself
  runs=DIR               where run directories are (default: runs)
  allow=[FIELD,...]      let guarded fields of an existing run change
  fork=NAME              start a new run from an existing run's checkpoint"""


def short_help() -> str:
    """What a bare `zephon` says: usage, examples and verbs."""
    return HELP.partition("\n\nconfig groups")[0].format(verbs=_verbs()) + "\n\nall of it: zephon --help"


def _verbs() -> str:
    return "\n".join(f"  {name:<10} {what}" for name, what in VERBS.items())


def help_text(config_dir: str | None) -> str:
    """The help with this installation's groups, and the user's."""
    from zephon.launch.config.compose import groups_in

    groups = "\n".join(
        f"  {'conf' if name == 'experiments' else name:<12} {', '.join(options)}"
        for name, options in groups_in(config_dir).items()
    )
    return HELP.format(verbs=_verbs(), groups=groups)
