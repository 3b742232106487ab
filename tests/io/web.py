"""A web server of the tests' own: real HTTP over a folder, with ranges and tags, and whatever faults a test asks for."""

from __future__ import annotations

import contextlib
import hashlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

Fault = Callable[["Handler", bytes], bool]
"""Answers instead of the server, and says whether it did; gets the request and the file's bytes."""


class Handler(BaseHTTPRequestHandler):
    """Files with ranges. `Web.faults` are used up one for each GET of a file."""

    protocol_version = "HTTP/1.1"
    web: Web

    def do_HEAD(self) -> None:
        self._answer(head=True)

    def do_GET(self) -> None:
        self._answer(head=False)

    def _answer(self, *, head: bool) -> None:
        place = self.web.folder / self.path.lstrip("/")
        if place.is_dir():
            links = "".join(f'<a href="{file.name}">' for file in sorted(place.iterdir()))
            self.reply(200, links.encode(), head=head, kind="text/html")
            return
        if not place.is_file():
            self.reply(404, b"", head=head)
            return
        data = place.read_bytes()
        self.web.requests.append((self.command, self.path, self.headers.get("Range", "")))
        if not head and self.web.faults and self.web.faults.pop(0)(self, data):
            return
        self.whole_or_part(data, head=head)

    def whole_or_part(self, data: bytes, *, head: bool = False, tagged: bytes | None = None) -> None:
        tag = {"ETag": f'"{hashlib.md5(tagged or data).hexdigest()}"'}
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if asked is None:
            self.reply(200, data, head=head, **tag)
            return
        start, last = int(asked[1]), min(int(asked[2]), len(data) - 1)
        if start >= len(data):
            self.reply(416, b"")
            return
        part = {"Content-Range": f"bytes {start}-{last}/{len(data)}"}
        self.reply(206, data[start : last + 1], head=head, **tag, **part)

    def reply(
        self, status: int, body: bytes, *, head: bool = False, kind: str = "application/octet-stream", **more: str
    ) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **more}.items():
            self.send_header(name, value)
        self.end_headers()
        if not head:
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class Web:
    """A running server: its folder, its address, what was asked of it, and the faults that come next."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.url = folder, f"http://127.0.0.1:{port}"
        self.requests: list[tuple[str, str, str]] = []
        self.faults: list[Fault] = []

    def asked(self, method: str = "GET") -> int:
        return sum(request[0] == method for request in self.requests)


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[Web]:
    handler = type("Own", (Handler,), {})
    with _running(handler) as port:
        handler.web = Web(folder, port)
        yield handler.web


@contextlib.contextmanager
def serving_without_ranges(folder: Path) -> Iterator[str]:
    """The URL of what ``python -m http.server`` runs."""

    class Quiet(SimpleHTTPRequestHandler):
        def __init__(self, *args: object) -> None:
            super().__init__(*args, directory=str(folder))  # type: ignore[arg-type]

        def log_message(self, *_: object) -> None:
            pass

    with _running(Quiet) as port:
        yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def _running(handler: type[BaseHTTPRequestHandler]) -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def status(code: int) -> Fault:
    def fault(handler: Handler, data: bytes) -> bool:
        handler.reply(code, b"not now")
        return True

    return fault


def short_body(handler: Handler, data: bytes) -> bool:
    """A part that is shorter than was asked for, and says so in all its lengths."""
    body = data[:10]
    handler.reply(206, body, **{"Content-Range": f"bytes 0-9/{len(data)}"})
    return True


def cut_off(handler: Handler, data: bytes) -> bool:
    """The connection ends in the middle of the body."""
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data[: len(data) // 2])
    handler.wfile.flush()
    handler.connection.close()
    handler.close_connection = True
    return True


def reset(handler: Handler, data: bytes) -> bool:
    """The connection ends without an answer."""
    handler.close_connection = True
    return True


def s3_error(code: int, name: str, words: str) -> Fault:
    def fault(handler: Handler, data: bytes) -> bool:
        body = f"<?xml version='1.0'?><Error><Code>{name}</Code><Message>{words}</Message></Error>"
        handler.reply(code, body.encode(), kind="application/xml")
        return True

    return fault


def dead(handler: Handler, data: bytes) -> bool:
    """Half of an answer, and then nothing for as long as the client waits."""
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data[:5])
    handler.wfile.flush()
    time.sleep(3)
    handler.close_connection = True
    return True


def other_range(handler: Handler, data: bytes) -> bool:
    """The bytes after those that were asked for."""
    handler.reply(206, data[1:11], **{"Content-Range": f"bytes 1-10/{len(data)}"})
    return True


def flipped(handler: Handler, data: bytes) -> bool:
    """The answer with bits flipped in every tenth byte."""
    handler.whole_or_part(bytes(byte ^ 0x80 if i % 10 == 0 else byte for i, byte in enumerate(data)), tagged=data)
    return True
