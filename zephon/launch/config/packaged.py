"""Where ``conf/``, ``launch/`` and ``k8s/`` are: top-level folders of a checkout, ``zephon/_shipped/`` of a wheel."""

from __future__ import annotations

from pathlib import Path

import zephon
from zephon.errors import ConfigError


def shipped(name: str) -> Path:
    """The directory of one shipped folder.

    Raises:
        ConfigError: the installation lacks it.
    """
    package = Path(zephon.__file__).resolve().parent
    for candidate in (package / "_shipped" / name, package.parent / name):
        # A checkout is known by its pyproject.toml: a stray folder named conf beside site-packages is not ours.
        if candidate.exists() and (candidate.parent.name == "_shipped" or (package.parent / "pyproject.toml").exists()):
            return candidate
    raise ConfigError(
        f"the folder {name!r} that belongs to Zephon was not found beside {package}",
        follows="nothing could be composed or submitted",
        remedy="reinstall the package zephon-elastic, or run from a complete checkout",
    )
