"""Folders that ``datasets.save_to_disk`` wrote: Arrow files, and beside them a small file that lists these.

    mine/dataset_dict.json            the splits; each is a dataset of its own
    mine/train/state.json             the files of this split
    mine/train/dataset_info.json      what it is; not needed to read it
    mine/train/data-00000-of-00002.arrow ...

Files of an older save, and those in which the library caches what it has computed, lie beside them and are no shards.
"""

from __future__ import annotations

import json

from zephon.errors import ConfigError
from zephon.io.filesystem import FileSystem
from zephon.io.storage import read_range

_STATE, _SPLITS = "state.json", "dataset_dict.json"
_CACHES = ("cache-", "tmp", "indices")


def beside_saved(fs: FileSystem, root: str, names: list[str], where: str) -> set[str]:
    """The files among the ``names`` below the ``root`` that are no shards although they lie in such a folder.

    Raises:
        ConfigError: several splits, a shard that is listed and missing, or one that is there and not listed.
    """
    if not any(name.endswith(".arrow") for name in names):
        return set()
    beside: set[str] = set()
    for name in names:
        folder, _, file = name.rpartition("/")
        if file == _SPLITS:
            _refuse_splits(_read(fs, root, name, where), where, folder)
        if file == _STATE:
            listed = _read(fs, root, name, where).get("_data_files")
            if isinstance(listed, list):
                shards = {f"{folder}/{file['filename']}".lstrip("/") for file in listed}
                inside = {other for other in names if other.rpartition("/")[0] == folder}
                _check_files(name, shards, inside, where)
                beside |= inside - shards
    return {name for name in beside if name.endswith((".arrow", ".json"))}


def _refuse_splits(content: dict[str, object], where: str, folder: str) -> None:
    listed = content.get("splits")
    splits = [str(split) for split in listed] if isinstance(listed, list) and listed else ["train"]
    raise ConfigError(
        f"{where!r} holds the splits {', '.join(splits)} of one saved dataset",
        follows="text that is held out would be trained on",
        remedy="name one of them: " + "/".join(part for part in (where.rstrip("/"), folder, splits[0]) if part),
    )


def _check_files(state: str, shards: set[str], inside: set[str], where: str) -> None:
    if missing := sorted(shards - inside):
        raise ConfigError(
            f"{where!r}: {state!r} lists {len(shards)} files, of which {missing[0]!r} is not there",
            follows="its documents would be missing",
            remedy="copy the whole folder again, or save the dataset again",
        )
    unlisted = sorted(name for name in inside - shards if name.endswith(".arrow"))
    if others := [name for name in unlisted if not name.rpartition("/")[2].startswith(_CACHES)]:
        raise ConfigError(
            f"{where!r} holds {others[0]!r}, which {state!r} does not list",
            follows="it would be dropped silently, or belongs to an older save of the dataset",
            remedy="remove it, or save the dataset into a new folder",
        )


def _read(fs: FileSystem, root: str, name: str, where: str) -> dict[str, object]:
    path = f"{root.rstrip('/')}/{name}" if root else name
    try:
        content = json.loads(read_range(fs, path, 0, fs.size(path)))
    except ValueError as error:
        raise ConfigError(
            f"{where!r}: {name!r} is not JSON: {error}",
            follows="which of the files beside it are the dataset is not known",
            remedy="save the dataset again",
        ) from error
    return content if isinstance(content, dict) else {}
