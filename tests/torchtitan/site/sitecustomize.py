"""Python imports this where this folder is on PYTHONPATH: whoever imports TorchTitan gets the device shims first."""

from __future__ import annotations

import importlib.abc
import sys
from importlib.machinery import ModuleSpec


class _Before(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if fullname == "torchtitan":
            sys.meta_path.remove(self)
            from tests.torchtitan import shims

            shims.device()
        return None


sys.meta_path.insert(0, _Before())
