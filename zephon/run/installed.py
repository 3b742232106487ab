"""The version of an installed package, found without ``importlib.metadata``, which takes long to import."""

from __future__ import annotations

import importlib.util
from pathlib import Path


def installed_version(library: str) -> str | None:
    """By the folder that every installer leaves beside a package; None where it is not installed."""
    package = importlib.util.find_spec(library)
    for folder in (package.submodule_search_locations or ()) if package else ():
        versions = [path.name.split("-")[1] for path in sorted(Path(folder).parent.glob(f"{library}-*.dist-info"))]
        if len(versions) == 1:
            return versions[0].removesuffix(".dist")
    from importlib import metadata

    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return None
