"""Datasets of the Hugging Face Hub: ``hf://datasets/ORG/NAME@REVISION/data/*.parquet``.

A branch or tag may move, so it is resolved once, to the commit that it stands for, and everything is read from that commit. A
run's contract has the commit: the launcher resolves it at the first start, and later attempts read the same one.
"""

from __future__ import annotations

import re

from zephon.errors import ConfigError, NotFound, StoreFailed, not_installed
from zephon.io.answers import Meaning, meaning_of

_URL = re.compile(r"hf://(datasets/[^/@]+/[^/@]+)(?:@([^/]+))?(/.*)?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
TIMEOUT_S = 10.0


def is_hub(url: str) -> bool:
    return url.startswith("hf://")


def commit_of(url: str) -> str:
    """The commit that the URL's revision stands for now; without one, that of the main branch.

    Raises:
        ConfigError: the URL is none of a dataset, the Hub refuses, or cannot be asked from here.
        NotFound: it has no such dataset or revision.
    """
    repository, revision, _ = _parts(url)
    if revision is not None and _COMMIT.fullmatch(revision):
        return revision
    try:
        from huggingface_hub import HfApi
    except ImportError as error:
        raise not_installed("reading from the Hugging Face Hub", "huggingface_hub", "hf") from error
    name = repository.removeprefix("datasets/")
    asked = None if revision is None else revision.replace("%2F", "/")
    try:
        commit = HfApi().dataset_info(name, revision=asked, timeout=TIMEOUT_S).sha
    except Exception as error:
        raise _failure(url, name, asked, error) from error
    if not commit:
        raise StoreFailed(f"{url}: the Hub names no commit", remedy="give one: hf://datasets/ORG/NAME@COMMIT/...")
    return commit


def at_commit(url: str, commit: str) -> str:
    """The same place at a commit."""
    repository, _, below = _parts(url)
    return f"hf://{repository}@{commit}{below}"


def _parts(url: str) -> tuple[str, str | None, str]:
    match = _URL.fullmatch(url)
    if match is None:
        raise ConfigError(
            f"{url!r} is no dataset of the Hugging Face Hub",
            remedy="write hf://datasets/ORG/NAME/FOLDER, or hf://datasets/ORG/NAME@REVISION/data/*.parquet",
        )
    return match[1], match[2], match[3] or ""


def _failure(url: str, name: str, revision: str | None, error: Exception) -> ConfigError | NotFound:
    cause = " ".join(str(error).split())[:300]
    meaning = meaning_of(error)
    if meaning is Meaning.ABSENT:
        return NotFound(
            f"{url}: the Hub has no dataset {name!r}" + (f" with the revision {revision!r}" if revision else "") + f": {cause}",
            remedy="check the name; for a private dataset log in (hf auth login) or set HF_TOKEN",
        )
    if meaning is Meaning.REFUSED:
        return ConfigError(
            f"{url}: the Hub refuses: {cause}",
            remedy="log in (hf auth login) or set HF_TOKEN, and accept the dataset's terms on its page",
        )
    return ConfigError(
        f"{url}: the Hub cannot be asked: {type(error).__name__}: {cause}",
        follows="nothing of the dataset could be read",
        remedy=(
            f"connect this machine, name a mirror in HF_ENDPOINT, or copy the data where there is a network: "
            f"hf download {name} --repo-type dataset --local-dir DIR"
        ),
    )
