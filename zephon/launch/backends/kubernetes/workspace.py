"""The work folder: edited code runs in the pods without a new image, as a layer above the image's own packages.

    folder ─pack─► ConfigMap <name>-code (tar.gz, at most 900 KiB) ─init container─► /workspace, first on PYTHONPATH

The same files give the same bytes, so two dry runs are equal. What is large belongs into the image or into the data.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

from zephon.errors import ConfigError
from zephon.fastjson import Json

FOLDER, VOLUME, ANNOTATION = "/workspace", "workspace", "zephon/workspace-sha256"
_PACKED, _FILE = "/etc/zephon-code", "code.tar.gz"
_LIMIT = 900 * 1024  # a ConfigMap holds 1 MiB, written out in base64 and with its metadata
_NO_CODE = ("__pycache__", "node_modules", "venv")
_UNPACK = f"import tarfile; tarfile.open('{_PACKED}/{_FILE}').extractall('{FOLDER}', filter='data')"


def pack(folder: str) -> bytes:
    """The folder as a tar.gz: its files by name, without hidden ones, caches and environments.

    Raises:
        ConfigError: there is no such folder, nothing in it, or too much.
    """
    root = Path(folder).expanduser()
    if not root.is_dir():
        raise ConfigError(
            f"scheduler.options.workspace={folder} is no folder of this machine",
            follows="the pods would run the image's code, and not yours",
            remedy="give the folder whose modules the pods should import, such as workspace=.",
        )
    files = sorted(_files(root))
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as tar:
        for path in files:
            info = tarfile.TarInfo(path.relative_to(root).as_posix())
            info.size, info.mode = path.stat().st_size, 0o644
            with open(path, "rb") as file:
                tar.addfile(info, file)
    data = buffer.getvalue()
    if files and len(data) <= _LIMIT:
        return data
    largest = sorted(files, key=lambda path: -path.stat().st_size)[:3]
    raise ConfigError(
        f"scheduler.options.workspace={folder} packs to {len(data):,} bytes in {len(files)} files"
        + (f"; the largest: {', '.join(path.relative_to(root).as_posix() for path in largest)}" if files else ""),
        follows=f"a ConfigMap holds at most {_LIMIT:,}" if files else "there would be no code to run",
        remedy="give the folder of the code alone; data belongs into the store, packages into the image",
    )


def _files(root: Path) -> Iterator[Path]:
    for path in root.iterdir():
        if path.name.startswith(".") or path.name in _NO_CODE or path.is_symlink():
            continue
        if path.is_dir() and not (path / "pyvenv.cfg").exists():
            yield from _files(path)
        elif path.is_file():
            yield path


def config_map(metadata: Json, data: bytes) -> Json:
    """The object that carries the packed folder."""
    annotations = {**metadata["annotations"], ANNOTATION: hashlib.sha256(data).hexdigest()}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {**metadata, "annotations": annotations},
        "immutable": True,
        "binaryData": {_FILE: base64.b64encode(data).decode()},
    }


def unpack(template: Json, *, source: str) -> None:
    """Has a pod unpack the folder before its container starts, which imports from it first and works in it.

    Args:
        source: name of the ConfigMap.
    """
    spec = template["spec"]
    main = spec["containers"][0]
    spec["volumes"] += [{"name": "code", "configMap": {"name": source}}, {"name": VOLUME, "emptyDir": {"sizeLimit": "1Gi"}}]
    spec["initContainers"] = [
        {
            "name": "code",
            "image": main["image"],
            "imagePullPolicy": main["imagePullPolicy"],
            "command": ["python", "-c", _UNPACK],
            "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "64Mi"}},
            "securityContext": main["securityContext"],
            "volumeMounts": [
                {"name": "code", "mountPath": _PACKED, "readOnly": True},
                {"name": VOLUME, "mountPath": FOLDER},
            ],
        }
    ]
    main["volumeMounts"].append({"name": VOLUME, "mountPath": FOLDER, "readOnly": True})
    main["workingDir"] = FOLDER
    own = next((entry for entry in main["env"] if entry["name"] == "PYTHONPATH"), None)
    if own is None:
        main["env"].append({"name": "PYTHONPATH", "value": FOLDER})
    else:
        own["value"] = f"{FOLDER}:{own['value']}"
