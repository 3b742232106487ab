"""A stand-in of the Hugging Face Hub: the answers of its HTTP interface by which huggingface_hub lists and reads a dataset.

Commits are folders, and a branch is a name for one of them. It checks the token of a private dataset, and takes `web`'s faults.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

from tests.io.web import Handler, Web

TOKEN = "hf_secret"


class Hub(Web):
    """A dataset ``org/name`` whose commits are the folders by their hashes, and whose branches these are."""

    def __init__(self, folder: Path, port: int) -> None:
        super().__init__(folder, port)
        self.branches: dict[str, str] = {}
        self.private = False

    def commit(self, branch: str, files: dict[str, bytes]) -> str:
        """Writes a commit, to which the branch moves."""
        sha = hashlib.sha1(repr((branch, sorted(files.items()), self.branches)).encode()).hexdigest()
        for name, data in files.items():
            (self.folder / sha / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / sha / name).write_bytes(data)
        self.branches[branch] = sha
        return sha


class HubHandler(Handler):
    web: Hub

    def _answer(self, *, head: bool) -> None:
        path, _, _ = unquote(self.path).partition("?")
        self.web.requests.append((self.command, path, self.headers.get("Range", "")))
        if self.web.private and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._error(401, "RepoNotFound", "Invalid username or password.")
            return
        api, files = "/api/datasets/org/name", "/datasets/org/name/resolve/"
        if path.startswith(files):
            self._file(path.removeprefix(files), head=head)
        elif path == api or path.startswith(f"{api}/revision/"):
            self._revision(path.removeprefix(api).removeprefix("/revision/") or "main", head=head)
        elif path.startswith(f"{api}/tree/"):
            self._tree(path.removeprefix(f"{api}/tree/"))
        else:
            self._error(404, "RepoNotFound", "Repository not found")

    def _error(self, status: int, code: str, words: str) -> None:
        self.reply(status, b"", **{"X-Error-Code": code, "X-Error-Message": words})

    def _json(self, value: object, *, head: bool = False) -> None:
        self.reply(200, json.dumps(value).encode(), head=head, kind="application/json")

    def _revision(self, name: str, *, head: bool) -> None:
        commit = self.web.branches.get(name, name)
        if not (self.web.folder / commit).is_dir():
            self._error(404, "RevisionNotFound", f"Invalid rev id: {name}")
            return
        self._json({"_id": "1", "id": "org/name", "sha": commit, "tags": [], "siblings": [], "private": False}, head=head)

    def _tree(self, below: str) -> None:
        name, _, folder = below.partition("/")
        top = self.web.folder / self.web.branches.get(name, name)
        if not (top / folder).is_dir():
            self._error(404, "EntryNotFound", "does not exist")
            return
        entries = []
        for place in sorted((top / folder).rglob("*") if "recursive=true" in self.path.lower() else (top / folder).iterdir()):
            entry: dict[str, object] = {"path": place.relative_to(top).as_posix(), "oid": "0", "size": 0, "type": "directory"}
            if place.is_file():
                data = place.read_bytes()
                entry |= {"oid": hashlib.sha1(data).hexdigest(), "size": len(data), "type": "file"}
            entries.append(entry)
        self._json(entries)

    def _file(self, below: str, *, head: bool) -> None:
        name, _, file = below.partition("/")
        place = self.web.folder / self.web.branches.get(name, name) / file
        if not place.is_file():
            self._error(404, "EntryNotFound", "Entry not found")
            return
        data = place.read_bytes()
        if not head and self.web.faults and self.web.faults.pop(0)(self, data):
            return
        self.whole_or_part(data, head=head)


@contextlib.contextmanager
def hub(folder: Path) -> Iterator[Hub]:
    """A running stand-in."""

    class Own(HubHandler):
        pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Own)
    Own.web = Hub(folder, server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield Own.web
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
