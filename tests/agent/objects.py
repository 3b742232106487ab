"""An S3 server of the tests' own: real HTTP, real requests, everything in memory; it ends with the test, whatever ends that."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

_numbers = itertools.count(1)
_SERVER = """
import logging, sys, threading
import moto.moto_server.threaded_moto_server as served
from moto.server import ThreadedMotoServer

one = threading.Lock()

class Ordered(served.DomainDispatcherApplication):  # a condition and its write are one, as in the store that this stands for
    def __call__(self, environ, start_response):
        if environ["REQUEST_METHOD"] != "PUT":
            return super().__call__(environ, start_response)
        with one:
            return super().__call__(environ, start_response)

served.DomainDispatcherApplication = Ordered
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()  # ends when whoever started this has ended
server.stop()
"""


@contextlib.contextmanager
def serving() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The server's process, and its port."""
    with subprocess.Popen([sys.executable, "-c", _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        yield server, int(server.stdout.readline())
        server.stdin.close()
        assert server.wait(20) == 0


def variables(port: int) -> dict[str, str]:
    """Botocore's own, by which this process and those that it starts find the server."""
    given = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_DEFAULT_REGION": "us-east-1"}
    given |= {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_EC2_METADATA_DISABLED": "true"}
    return given | {"AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}


@pytest.fixture(scope="session")
def store() -> Iterator[int]:
    """The server's port, one for all tests: clients keep the address that they have seen first."""
    pytest.importorskip("moto", reason="no S3 server here: moto is not installed")
    pytest.importorskip("s3fs", reason="no S3 client here: s3fs is not installed")
    with serving() as (_, port):
        yield port


@pytest.fixture
def objects(store: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty bucket."""
    import s3fs

    for name, value in variables(store).items():
        monkeypatch.setenv(name, value)
    bucket = f"bucket-{next(_numbers)}"
    s3fs.S3FileSystem().mkdir(bucket)
    return f"s3://{bucket}"
