"""One question to a far store: a range of a file, or what it is; and what its failure means.

Where a client can say it, the answer names the whole file that it is a part of, by size and content, in the same message as the
bytes (S3, HTTP). Any other store is asked for that again after a while (`remote`).
"""

from __future__ import annotations

import datetime
import enum
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from zephon.io.filesystem import FileSystem
from zephon.types import Json

CONTENT = (
    "ETag",
    "etag",
    "md5Hash",
    "Content-MD5",
    "blob_id",
    "mtime",
    "LastModified",
    "Last-Modified",
    "last_modified",
    "created",
)
SILENT_S = 30  # a web server that sends nothing for so long has gone
_PART = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")


class Mark(NamedTuple):
    """What stands for a file's content: its size, and what the store says of it (its tag, or the time of the last change).

    Each is None where the store does not say it.
    """

    size: int | None
    kind: str | None = None
    value: str | None = None

    def differs(self, other: Mark) -> bool:
        """Whether both cannot be of one content. What only one of them says is no difference."""
        sizes = self.size is not None and other.size is not None and self.size != other.size
        return sizes or (self.kind is not None and self.kind == other.kind and self.value != other.value)

    def __str__(self) -> str:
        size = "unknown size" if self.size is None else f"{self.size} bytes"
        return f"{size}, {self.kind} {self.value}" if self.kind else size


def mark_of(info: Json | Mapping[str, object]) -> Mark:
    """The mark that a listing, or the head of an answer, gives."""
    size = info.get("size")
    kind = next((name for name in CONTENT if info.get(name) is not None), None)
    raw = None if kind is None else info[kind]
    seconds = raw.timestamp() if isinstance(raw, datetime.datetime) else raw  # some stores list the one and tell the other
    value = None if kind is None else str(seconds).removeprefix("W/")
    return Mark(None if size is None else int(str(size)), kind, value)


class Answer(NamedTuple):
    """Bytes of a file from ``start`` on, and its mark as far as it was said with them."""

    data: bytes
    start: int
    mark: Mark


class Meaning(enum.Enum):
    """What a failed question means."""

    AGAIN = "the next try may succeed"
    ABSENT = "no such file"
    CHANGED = "the file is another one now"
    REFUSED = "the store understood and refuses"
    UNKNOWN = "no failure of a store"


def ask(fs: FileSystem, path: str, start: int, stop: int) -> Answer:
    """Bytes [start, stop) of a file, or whatever the store gives instead. Raises what its client raises."""
    protocol = getattr(fs, "protocol", ())
    if "http" in protocol:
        return _ask_web(fs, path, start, stop)
    if "s3" in protocol:
        return _ask_s3(fs, path, start, stop)
    return Answer(bytes(fs.cat_file(path, start=start, end=stop)), start, Mark(None))


def _ask_web(client: Any, url: str, start: int, stop: int) -> Answer:
    from fsspec.asyn import sync

    answer: Answer = sync(client.loop, _get, client, url, start, stop)
    return answer


async def _get(client: Any, url: str, start: int, stop: int) -> Answer:
    import aiohttp

    session = await client.set_session()
    given = {"timeout": aiohttp.ClientTimeout(total=None, sock_connect=SILENT_S, sock_read=SILENT_S), **client.kwargs}
    given["headers"] = {**given.get("headers", {}), "Accept-Encoding": "identity", "Range": f"bytes={start}-{stop - 1}"}
    async with session.get(client.encode_url(url), **given) as answer:
        answer.raise_for_status()
        size, first = answer.headers.get("Content-Length"), 0
        if answer.status == 206:
            part = _PART.fullmatch(answer.headers.get("Content-Range", ""))
            if part is None:
                raise EOFError(f"an answer with no valid Content-Range: {answer.headers.get('Content-Range')!r}")
            first, size = int(part[1]), None if part[3] == "*" else part[3]
        mark = mark_of({"size": size} | {name: answer.headers[name] for name in CONTENT if name in answer.headers})
        return Answer(await answer.read(), first, mark)


def _ask_s3(client: Any, path: str, start: int, stop: int) -> Answer:
    from fsspec.asyn import sync

    bucket, key, version = client.split_path(path)
    more = {"VersionId": version} if version else {}
    answer = client.call_s3("get_object", Bucket=bucket, Key=key, Range=f"bytes={start}-{stop - 1}", **more)
    try:
        data = sync(client.loop, answer["Body"].read)
    finally:
        answer["Body"].close()
    part = _PART.fullmatch(answer.get("ContentRange", ""))
    size = answer.get("ContentLength") if part is None else part[3]
    return Answer(bytes(data), 0 if part is None else int(part[1]), mark_of({**answer, "size": size}))


_GONE, _OTHER = (404, 410), (412, 416)
_PASSING = (408, 409, 425, 429)


def meaning_of(error: Exception) -> Meaning:
    """What the failure of a store's client means, by the status of its answer where there was one."""
    causes = list(_causes(error))
    status = next((status for cause in causes if (status := _status(cause)) is not None), None)
    if any(isinstance(cause, (TimeoutError, ConnectionError, EOFError)) or _is_garbled(cause) for cause in causes):
        return Meaning.AGAIN
    if status in _GONE:
        return Meaning.ABSENT
    if status in _OTHER:
        return Meaning.CHANGED
    if status is not None and status >= 300:
        return Meaning.AGAIN if status >= 500 or status in _PASSING else Meaning.REFUSED
    if any(isinstance(cause, PermissionError) or "Credential" in type(cause).__name__ for cause in causes):
        return Meaning.REFUSED
    networks = [cause for cause in causes if _is_of_network(cause)]
    if networks:
        return Meaning.AGAIN
    if isinstance(error, (FileNotFoundError, IsADirectoryError, NotADirectoryError)):
        return Meaning.ABSENT
    return Meaning.AGAIN if isinstance(error, OSError) else Meaning.UNKNOWN


def _causes(error: BaseException | None) -> list[BaseException]:
    causes: list[BaseException] = []
    while error is not None and len(causes) < 8:
        causes.append(error)
        error = error.__cause__
    return causes


def _is_garbled(cause: BaseException) -> bool:
    """What a client finds wrong with an answer itself, under a status that is no server's."""
    return type(cause).__module__ == "aiohttp.http_exceptions"


_NETWORK = {
    *("aiohttp", "botocore", "urllib3", "requests", "http", "ssl", "socket", "google", "azure"),
    *("httpx", "httpx2", "httpcore", "httpcore2", "huggingface_hub", "gcsfs"),
}


def _is_of_network(cause: BaseException) -> bool:
    package = type(cause).__module__.partition(".")[0]
    return package in _NETWORK


def _status(error: BaseException) -> int | None:
    """The HTTP status that this error stands for: each client keeps it elsewhere."""
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):  # botocore
        status: object = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    else:
        status = getattr(response, "status_code", None)
    for name in ("status", "status_code", "code"):
        status = getattr(error, name, None) if status is None else status
    return status if isinstance(status, int) and 100 <= status < 600 else None
