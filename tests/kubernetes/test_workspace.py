"""The work folder as an object: the same files the same bytes, what is not code left out, and a pod that unpacks it first."""

from __future__ import annotations

import base64
import io
import os
import tarfile
from pathlib import Path

import pytest

from tests.kubernetes.samples import sample_app, sample_options
from zephon.errors import ConfigError
from zephon.launch.backends.kubernetes.manifest import build
from zephon.launch.backends.kubernetes.workspace import pack


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in (
        "mine/ops.py",
        "conf/a.yaml",
        ".git/config",
        "mine/__pycache__/ops.pyc",
        "env/pyvenv.cfg",
        "env/lib.py",
        ".secret",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "link").symlink_to("/etc/passwd")
    return tmp_path


def test_the_same_files_are_the_same_bytes_and_caches_environments_hidden_files_and_links_stay_out(folder: Path) -> None:
    first = pack(str(folder))
    os.utime(folder / "mine/ops.py", (1, 1))
    assert pack(str(folder)) == first
    with tarfile.open(fileobj=io.BytesIO(first)) as tar:
        assert tar.getnames() == ["conf/a.yaml", "mine/ops.py"]
    (folder / "mine/ops.py").write_text("edited")
    assert pack(str(folder)) != first


def test_a_folder_that_is_missing_empty_or_too_large_is_refused_with_what_to_do(folder: Path) -> None:
    with pytest.raises(ConfigError, match="is no folder of this machine"):
        pack(str(folder / "nowhere"))
    (folder / "empty").mkdir()
    with pytest.raises(ConfigError, match="there would be no code to run"):
        pack(str(folder / "empty"))
    (folder / "data.bin").write_bytes(os.urandom(1 << 20))
    with pytest.raises(ConfigError, match=r"the largest: data\.bin(.|\n)*data belongs into the store"):
        pack(str(folder))


def test_nodes_and_coordinator_import_from_it_first(folder: Path) -> None:
    options = sample_options(workspace=str(folder), env={"PYTHONPATH": "/own"})
    request = build(sample_app(), options, submission="x")
    carried = next(item for item in request.documents if item["metadata"]["name"] == "exp1-1-code")
    assert base64.b64decode(carried["binaryData"]["code.tar.gz"]) == pack(str(folder))
    for document in request.documents:
        if document["kind"] in ("Job", "Deployment"):
            spec = document["spec"]["template"]["spec"]
            (main,), (init,) = spec["containers"], spec["initContainers"]
            assert {"name": "PYTHONPATH", "value": "/workspace:/own"} in main["env"]
            assert main["workingDir"] == "/workspace"
            assert init["securityContext"] == main["securityContext"]
            assert {"name": "code", "configMap": {"name": "exp1-1-code"}} in spec["volumes"]


def test_the_command_that_unpacks_it_does(folder: Path, tmp_path: Path) -> None:
    """The very command of the manifest, with this machine's paths in it."""
    import subprocess
    import sys

    request = build(sample_app(), sample_options(workspace=str(folder)), submission="x")
    (init,) = request.documents[0]["spec"]["template"]["spec"]["initContainers"]
    packed, target = tmp_path / "packed", tmp_path / "target"
    packed.mkdir()
    (packed / "code.tar.gz").write_bytes(pack(str(folder)))
    _, flag, program = init["command"]
    program = program.replace("/etc/zephon-code", str(packed)).replace("/workspace", str(target))
    subprocess.run([sys.executable, flag, program], check=True)
    assert (target / "mine/ops.py").read_text() == "mine/ops.py"
