"""TorchTitan with this loader: the same global batch at every data-parallel degree, through TorchTitan's own checkpoints.

    # my_configs/config_registry.py
    from torchtitan.models.llama3.config_registry import llama3_debugmodel
    from zephon.integrations.torchtitan import with_zephon

    def llama3_zephon():
        return with_zephon(llama3_debugmodel(), recipe="experiment.yaml", lanes=32)

`ZephonDataLoader` needs no TorchTitan: its ``Config.build(...)`` is what TorchTitan calls, and what any loop may call.
`ZephonTrainer` and `with_zephon` do. See docs/torchtitan.md.
"""

from __future__ import annotations

import importlib
from typing import Any

from zephon.errors import ConfigError

_HOME = {
    "ZephonDataLoader": "zephon.integrations.torchtitan.loader",
    "ZephonTrainer": "zephon.integrations.torchtitan.trainer",
    "with_zephon": "zephon.integrations.torchtitan.trainer",
}

__all__ = ["ZephonDataLoader", "ZephonTrainer", "with_zephon"]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:  # the trainer imports all of TorchTitan, which takes many seconds
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_HOME[name]), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "torchtitan":
            raise
        raise ConfigError(
            f"{name} needs TorchTitan, which is not installed",
            remedy="install zephon-elastic[torchtitan] in an environment of its own, since it needs a newer torch",
        ) from error
