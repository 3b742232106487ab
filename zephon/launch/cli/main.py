"""The command line: ``python -m zephon.launch [verb] ...`` and the console script ``zephon``.

Exit status: 0 done, 1 the job failed, 2 a ledger or a health check disagrees, 65 configuration or contract, 143 stopped.
Ctrl-C in a foreground ``run`` drains: the step is finished and saved, and the line to resume with is printed; a second
Ctrl-C leaves at once and the drain goes on in the background. A closed terminal leaves the run running.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence

from rich.console import Console

from zephon.errors import ConfigError, ContractError, ZephonError
from zephon.exits import Exit
from zephon.launch.cli.arguments import Arguments, parse
from zephon.launch.cli.completion import candidates, script
from zephon.launch.cli.grammar import VERBS
from zephon.launch.cli.help import help_text, usage
from zephon.run.environment import version_line

_FILE_WIDTH = 240
_STORES = ("botocore", "aiobotocore", "aiohttp", "gcsfs", "google", "adlfs", "azure")  # their errors are no OSErrors


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status."""
    # No markup: names, paths and errors of the run's own are shown as they are, brackets included.
    width = None if sys.stdout.isatty() else _FILE_WIDTH
    console = Console(soft_wrap=True, width=width, markup=False)
    argv = sys.argv[1:] if argv is None else argv
    try:
        return _run(argv, console)
    except ZephonError as error:
        show_error(error)
        return error.exit_status
    except BrokenPipeError:  # `zephon logs | head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _storage_failed(
            f"{error.strerror or error}" + (f": {error.filename}" if error.filename else ""),
            "check the path, its rights and the free space; `zephon doctor` checks all of them",
        )
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in _STORES:
            raise
        return _storage_failed(
            " ".join(str(error).split()), "check credentials, endpoint and network of the store that runs= or the data name"
        )
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return Exit.INTERRUPTED


def _run(argv: Sequence[str], console: Console) -> int:
    if not argv:
        console.print(usage(), markup=False, highlight=False)
        return 0
    arguments = parse(argv)
    if arguments.help:
        console.print(help_text(arguments.verb, arguments.config_dir), markup=False, highlight=False)
    elif arguments.version:
        console.print(version_line(), markup=False, highlight=False)
    elif arguments.completion is not None:
        print(script(arguments.completion))
    elif arguments.complete is not None:
        print("\n".join(candidates(arguments.complete)))
    else:
        module, _, function = VERBS[arguments.verb].call.partition(":")
        call: Callable[[Arguments, Console], int] = getattr(importlib.import_module(module), function)
        return call(arguments, console)
    return 0


def _storage_failed(what: str, remedy: str) -> int:
    show_error(ConfigError(what, remedy=remedy))
    return ConfigError.exit_status


def show_error(error: ZephonError) -> None:
    """Three parts on stderr; a contract's differences as a table."""
    console = Console(stderr=True, soft_wrap=True, markup=False)
    differences = getattr(error, "differences", None)
    if isinstance(error, ContractError) and differences:
        from zephon.launch.cli.plan import difference_table

        console.print(difference_table(differences))
    console.print("error:", style="bold red", end=" ")
    console.print(str(error), markup=False, highlight=False)
    for note in getattr(error, "__notes__", []):
        console.print(f"  {note}", markup=False, highlight=False)
