"""Where the package data is, and which config groups it and a user's directory hold; Hydra is not needed for that.

``conf/``, ``launch/`` and ``k8s/`` are top-level folders of a checkout and ``zephon/_package_data/`` of a wheel.
"""

from __future__ import annotations

from pathlib import Path

import zephon
from zephon.errors import ConfigError


def package_data(name: str) -> Path:
    """One folder of the package data.

    Raises:
        ConfigError: the installation lacks it.
    """
    package = Path(zephon.__file__).resolve().parent
    installed, checkout = package / "_package_data" / name, package.parent / name
    if installed.exists():
        return installed
    # A checkout is known by its pyproject.toml: any folder may lie beside site-packages and be named conf.
    if checkout.exists() and (package.parent / "pyproject.toml").exists():
        return checkout
    raise ConfigError(
        f"the folder {name!r} that belongs to Zephon was not found beside {package}",
        remedy="reinstall the package zephon-elastic, or run from a complete checkout",
    )


def config_roots(config_dir: str | None) -> list[Path]:
    """The directories that hold configs, the user's before the package's.

    Raises:
        ConfigError: the user's is not there.
    """
    packaged = package_data("conf")
    if config_dir is None:
        return [packaged]
    if not Path(config_dir).is_dir():
        raise ConfigError(f"--config-dir {config_dir!r} is not a directory", remedy="give an existing directory")
    return [Path(config_dir).resolve(), packaged]


def groups_in(config_dir: str | None) -> dict[str, list[str]]:
    """The options of each config group by the group's path, the package's and the user's own."""
    groups: dict[str, set[str]] = {}
    for root in config_roots(config_dir):
        for path in sorted(root.rglob("*.yaml")):
            group = path.parent.relative_to(root).as_posix()
            if group != ".":
                groups.setdefault(group, set()).add(path.stem)
    return {group: sorted(options) for group, options in sorted(groups.items())}
