"""The command line: ``python -m zephon.launch [verb] ...`` and the console script ``zephon``.

Exit status: 0 done, 1 the job failed, 2 a ledger or a health check disagrees, 65 configuration or contract, 143 stopped.
Ctrl-C in a foreground ``run`` drains: the step is finished and saved, and the line to resume with is printed; a second
Ctrl-C leaves at once and the drain goes on in the background. A closed terminal leaves the run running.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from rich.console import Console

from zephon.errors import ConfigError, ContractError, ZephonError
from zephon.exits import Exit
from zephon.launch.cli.arguments import Arguments, check_words, parse
from zephon.launch.cli.help import help_text, short_help

_FILE_WIDTH = 240
_STORES = ("botocore", "aiobotocore", "aiohttp", "gcsfs", "google", "adlfs", "azure")  # their errors are no OSErrors
Verb = Callable[[Arguments, Console], int]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status."""
    # No markup: names, paths and errors of the run's own are shown as they are, brackets included.
    width = None if sys.stdout.isatty() else _FILE_WIDTH
    console = Console(soft_wrap=True, width=width, markup=False)
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        if not words:
            console.print(short_help(), markup=False, highlight=False)
            return 0
        arguments = parse(words)
        if arguments.has("--help"):
            console.print(help_text(arguments.flags.get("--config-dir")), markup=False, highlight=False)
            return 0
        if arguments.has("--complete") or arguments.has("--completion"):
            from zephon.launch.cli import completion

            line, shell = arguments.flags.get("--complete"), arguments.flags.get("--completion", "")
            print(completion.script(shell) if line is None else "\n".join(completion.candidates(line)))
            return 0
        if arguments.has("--version"):
            from zephon.run.environment import version_line

            console.print(version_line(), markup=False, highlight=False)
            return 0
        check_words(arguments)
        return _verb(arguments.verb)(arguments, console)
    except ZephonError as error:
        show_error(error)
        return error.exit_status
    except BrokenPipeError:  # `zephon logs | head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _storage_failed(
            f"{error.strerror or error}" + (f": {error.filename}" if error.filename else ""),
            "check the path, its rights and the free space; `zephon doctor` looks at all of them",
        )
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in _STORES:
            raise
        told = " ".join(str(error).split())
        return _storage_failed(told, "check credentials, endpoint and network of the store that runs= or the data name")
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return Exit.INTERRUPTED


def _storage_failed(what: str, remedy: str) -> int:
    show_error(ConfigError(what, follows="the command could not read or write what it needs", remedy=remedy))
    return ConfigError.exit_status


def show_error(error: ZephonError) -> None:
    """Three parts on stderr; a contract's differences as a table."""
    console = Console(stderr=True, soft_wrap=True, markup=False)
    found = getattr(error, "differences", None)
    if isinstance(error, ContractError) and found:
        from zephon.launch.cli.plan import difference_table

        console.print(difference_table(found))
    console.print("error:", style="bold red", end=" ")
    console.print(str(error), markup=False, highlight=False)
    for note in getattr(error, "__notes__", []):
        console.print(f"  {note}", markup=False, highlight=False)


def _verb(name: str) -> Verb:
    from zephon.launch.cli import verbs

    found: Verb = getattr(verbs, name if name != "list" else "list_runs")
    return found
