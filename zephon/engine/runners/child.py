"""A child process that ends with its parent: a new interpreter, never a fork, that gets its task over a socket.

It has a session of its own: a signal to the training process's group would else end it before the last state is saved.
It ends when its parent closes the socket or ends, even by SIGKILL.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import traceback
from typing import NamedTuple, Protocol

from zephon.engine.runners.transport import Channel, Closed, make_slots
from zephon.errors import ConfigError
from zephon.exits import die_with_parent

_importing_script = False
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from zephon.engine.runners.child import main; main(sys.argv[2])"
)


class Task(Protocol):
    """What a child does: pickled in the parent, run in the child until it returns or the channel is closed."""

    def __call__(self, channel: Channel) -> None: ...


class Death(NamedTuple):
    """How a child ended, and what to do about it."""

    how: str
    remedy: str


class Child:
    """The parent's side.

    Args:
        task: pickled `Task`, see `pack`.
        slots: how many shared memory files it shares with the child.
    """

    def __init__(self, task: bytes, slots: int) -> None:
        if _importing_script:
            raise ConfigError(
                "this script starts a pipeline with child processes when it is imported, and each child imports it to find the "
                "functions in it",
                follows="every child would start children of its own",
                remedy='put what is to run, and not only be defined, under: if __name__ == "__main__":',
            )
        ours, theirs = socket.socketpair()
        shared = make_slots(slots)
        self.channel = Channel(ours, shared)
        # A lifeline that nobody writes to: reading it ends when this process does.
        watched, self._lifeline = os.pipe()
        passed = [theirs.fileno(), watched, *shared]
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _START, json.dumps(sys.path), json.dumps([os.getpid(), _is_main(), *passed])],
                pass_fds=passed,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        except BaseException:
            self.channel.close()
            os.close(self._lifeline)
            raise
        finally:
            theirs.close()
            os.close(watched)
        try:
            self.channel.send(task)
        except BaseException:  # it was killed at once: nobody else knows of it yet
            self.close()
            raise

    def death(self) -> Death:
        """Of a child that has hung up."""
        try:
            status = self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return Death("has closed its connection and goes on", "do not close descriptors that are not yours")
        if status == -signal.SIGKILL:
            remedy = "if nobody killed it, it was for memory: give more, or lower max_workers and prefetch_bytes"
            return Death("was killed by signal 9", remedy)
        if status < 0:
            return Death(
                f"was killed by signal {-status}", "a compiled library that your functions call has crashed: look there"
            )
        what = f"ended by itself with exit status {status}"
        return Death(what, "a function or library of yours calls os._exit() or exit(): let it raise an exception instead")

    def close(self) -> None:
        """Ends the child now: nothing in it is worth waiting for."""
        self.channel.hang_up()
        self.process.kill()
        self.process.wait()
        self.channel.close()
        os.close(self._lifeline)


def pack(task: Task, option: str) -> bytes:
    """The task as bytes. Raises ConfigError when a function in it cannot be found again by its name."""
    try:
        data = pickle.dumps(task, protocol=5)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"{option} cannot hand this pipeline to another process: {error}",
            follows="that process could not find the function",
            remedy="use functions defined at the top of a module instead of lambdas and closures, or runner='threads'",
        ) from error
    main: dict[str, object] = {}
    if b"__main__" in data:
        from multiprocessing import spawn

        known = spawn.get_preparation_data("zephon")
        main = {name: known[name] for name in ("init_main_from_name", "init_main_from_path") if name in known}
    return pickle.dumps((main, data))


def main(arguments: str) -> None:
    """Entry of the child."""
    parent, die_with_thread, connection, watched, *slots = json.loads(arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if die_with_thread:
        die_with_parent(parent)
    threading.Thread(target=_end_with, args=(watched,), daemon=True).start()
    channel = Channel(socket.socket(fileno=connection), slots)
    prepared, data = pickle.loads(channel.receive()[0])
    try:
        if prepared:
            _import_script(prepared)
        task: Task = pickle.loads(data)
    except Exception as error:  # noqa: BLE001 - of the user's script: raised in the parent, for whatever it asked first
        channel.send(portable(error), 0)
        os.read(watched, 1)  # until the parent has read it
        return
    with contextlib.suppress(Closed):
        task(channel)


def _import_script(prepared: dict[str, object]) -> None:
    """Makes the user's main script known here, as multiprocessing does."""
    global _importing_script
    from multiprocessing import spawn

    _importing_script = True
    spawn.prepare(prepared)
    _importing_script = False


def _end_with(lifeline: int) -> None:
    os.read(lifeline, 1)
    os._exit(0)


def _is_main() -> bool:
    # The death signal is sent when the *thread* that started the child ends, so only the main thread may use it.
    return threading.current_thread() is threading.main_thread()


def portable(error: Exception) -> Exception:
    """The error with its traceback as a note, which does not travel otherwise; or one that says the same when it cannot."""
    error.add_note("in a child process:\n" + "".join(traceback.format_tb(error.__traceback__)).rstrip())
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - a user's exception class may do anything
        plain = RuntimeError(f"{type(error).__name__}: {error}")
        for note in getattr(error, "__notes__", []):
            plain.add_note(note)
        return plain
    return error
