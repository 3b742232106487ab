"""The raw overlay: what has no option of its own, merged last, completely or not at all.

    overlay:
      job: {spec: {activeDeadlineSeconds: 86400}}
      pods: {spec: {hostNetwork: true, containers: [{name: main, volumeMounts: [{name: d, mountPath: /d}]}]}}

``pods`` is merged into the pod templates of the nodes and of the coordinator, whose container is called ``main`` in both;
``nodes`` into that of the nodes only.
Mappings merge; a list of named things merges by what names its items (``mountPath`` for mounts); any other list replaces;
``null`` removes. Whatever the launcher itself relies on (names, labels, the node count) cannot be overlaid.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from zephon.errors import ConfigError, nearest
from zephon.fastjson import Json

TARGETS = ("job", "nodes", "pods", "config_map", "service", "coordinator")
_TEMPLATES = {"nodes": ("job",), "pods": ("job", "coordinator")}
_OURS = {
    ("metadata", "name"),
    ("metadata", "namespace"),
    ("metadata", "ownerReferences"),
    ("apiVersion",),
    ("kind",),
    ("spec", "parallelism"),
    ("spec", "completions"),
    ("spec", "completionMode"),
    ("spec", "suspend"),
    ("spec", "selector"),
    ("spec", "template"),
}
_NAMED_BY = {"volumeMounts": "mountPath"}


def apply_overlay(built: Mapping[str, Json], overlay: Json) -> dict[str, Json]:
    """Copies of the built objects with the overlay merged in.

    Raises:
        ConfigError: an unknown target, a field that the launcher owns, or a value of another shape than what it is merged into.
    """
    merged = copy.deepcopy(dict(built))
    for target, patch in sorted(overlay.items(), key=lambda item: item[0] != "pods"):
        if target not in TARGETS:
            raise ConfigError(
                f"overlay.{target} names no object",
                follows="the overlay would have no effect",
                remedy=nearest(str(target), TARGETS),
            )
        _check(patch, f"overlay.{target}", owned=set() if target in _TEMPLATES else _OURS)
        if target in _TEMPLATES:
            for name in _TEMPLATES[target]:
                template = merged[name]["spec"]["template"]
                merged[name]["spec"]["template"] = _merge(template, patch, f"overlay.{target}")
        else:
            merged[target] = _merge(merged[target], patch, f"overlay.{target}")
    return merged


def changes(before: object, after: object, path: str = "") -> Iterator[str]:
    """What an overlay changed, one line a leaf: ``spec.template.spec.hostNetwork: (absent) -> True``."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted({*before, *after}):
            yield from changes(before.get(key, _ABSENT), after.get(key, _ABSENT), f"{path}.{key}" if path else key)
    elif isinstance(before, list) and isinstance(after, list) and _key(path, before + after):
        key = _key(path, before + after)
        left, right = ({item[key]: item for item in items} for items in (before, after))
        for name in [*left, *(n for n in right if n not in left)]:
            yield from changes(left.get(name, _ABSENT), right.get(name, _ABSENT), f"{path}[{name}]")
    elif before != after:
        yield f"{path}: {before!r} -> {after!r}"


class _Absent:
    def __repr__(self) -> str:
        return "(absent)"


_ABSENT = _Absent()


def _check(patch: object, at: str, *, owned: set[tuple[str, ...]]) -> None:
    if not isinstance(patch, Mapping):
        raise ConfigError(f"{at}={patch!r} is not a mapping", follows="it could not be merged", remedy="write KEY: VALUE pairs")
    for path in owned:
        value: object = patch
        for key in path:
            if not isinstance(value, Mapping) or key not in value:
                break
            value = value[key]
        else:
            template = path == ("spec", "template")
            remedy = "use overlay.nodes or overlay.pods" if template else "use the launcher's own option for it"
            raise ConfigError(
                f"{at}.{'.'.join(path)} cannot be overlaid",
                follows="the launcher relies on its own value there and would lose track of the job",
                remedy=remedy,
            )


def _key(path: str, items: list[Any]) -> str | None:
    """What names the items of a list, or None where the list is replaced as a whole."""
    key = _NAMED_BY.get(path.rsplit(".", 1)[-1], "name")
    return key if items and all(isinstance(item, Mapping) and key in item for item in items) else None


def _merge(base: Any, patch: object, at: str) -> Any:
    if isinstance(base, Mapping) and isinstance(patch, Mapping):
        merged = dict(base)
        for key, value in patch.items():
            if value is None:
                if key not in merged:
                    raise ConfigError(
                        f"{at}.{key}=null removes something that is not there",
                        follows="the overlay would have no effect",
                        remedy=f"{nearest(str(key), map(str, merged))} Or leave the key out",
                    )
                del merged[key]
            else:
                merged[key] = _merge(merged[key], value, f"{at}.{key}") if key in merged else copy.deepcopy(value)
        return merged
    if isinstance(base, list) and isinstance(patch, list):
        key = _key(at, base + patch)
        if key is None:
            return copy.deepcopy(patch)
        by_name = {item[key]: item for item in base}
        for item in patch:
            base_item = by_name.get(item[key])
            by_name[item[key]] = copy.deepcopy(item) if base_item is None else _merge(base_item, item, f"{at}[{item[key]}]")
        return list(by_name.values())
    if isinstance(base, (Mapping, list)) or isinstance(patch, (Mapping, list)):
        raise ConfigError(
            f"{at}={patch!r} has another shape than the {type(base).__name__} that is there",
            follows="the API server would refuse the object",
            remedy="write the same kind of value",
        )
    return copy.deepcopy(patch)
