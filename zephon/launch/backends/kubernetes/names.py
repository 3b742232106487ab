"""Names, labels and quantities of Kubernetes objects: made or refused here, before the API server sees them.

A Job called ``exp1-2`` gives pods ``exp1-2-0-x7k2p`` with host names ``exp1-2-0``: the longest index and the random suffix
must fit into 63 characters too, or the Job is accepted and its pods never start.
"""

from __future__ import annotations

import hashlib
import re
from decimal import Decimal

from zephon.errors import ConfigError

DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?)(m|k|Ki|M|Mi|G|Gi|T|Ti|P|Pi|E|Ei)?")
_UNITS = {"m": Decimal("0.001")}
_UNITS |= {unit: Decimal(1000) ** power for power, unit in enumerate(("", "k", "M", "G", "T", "P", "E"))}
_UNITS |= {f"{unit}i": Decimal(1024) ** power for power, unit in enumerate("KMGTPE", start=1)}

RUN, ATTEMPT, SPEC, ROLE = "zephon/run", "zephon/attempt", "zephon/spec", "zephon/role"
RUN_ID, RUN_URL = "zephon/run-id", "zephon/run-url"
MANAGED_BY = "app.kubernetes.io/managed-by"
SPEC_SHA256, SUBMISSION, NODES_MIN, NODES_MAX = (
    "zephon/spec-sha256",
    "zephon/submission",
    "zephon/nodes-min",
    "zephon/nodes-max",
)
INDEX = "batch.kubernetes.io/job-completion-index"
JOB_NAME = "batch.kubernetes.io/job-name"

# "-" + random suffix of five characters, which the Job controller appends to "<name>-<index>".
_POD_SUFFIX = 6
_ATTEMPT_DIGITS = 4


def job_name(name: str, *, nodes_max: int, from_what: str = "name", room_for: str = "") -> str:
    """A run's name as a Job name: lower case, other characters become hyphens, ``run-`` before a digit.

    Args:
        name: what the user calls the run (and attempt).
        nodes_max: the largest number of nodes the Job may be rescaled to; its index must fit.
        from_what: the setting to name in an error.
        room_for: what is appended later.
    Raises:
        ConfigError: nothing usable is left, or the pods' names would exceed 63 characters.
    """
    clean = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    if clean[:1].isdigit():
        clean = f"run-{clean}"  # the Service has the Job's name, and may not begin with a digit
    room = 63 - _POD_SUFFIX - len(str(max(nodes_max - 1, 0))) - 1 - len(room_for)
    if not clean:
        raise ConfigError(
            f"{from_what}={name!r} has no letter or digit that Kubernetes allows in a name",
            follows="the Job could not be created",
            remedy="use a-z, 0-9 and hyphens",
        )
    if len(clean) > room:
        raise ConfigError(
            f"{from_what}={name!r} gives the Job name {clean!r} of {len(clean)} characters",
            follows="the names of its pods would exceed 63 characters with the "
            + (f"number of up to {room_for[1:]} attempts and the " if room_for else "")
            + f"index of up to {nodes_max} nodes",
            remedy=f"use a name of at most {room} characters",
        )
    return clean


def attempt_name(name: str, attempt: int, *, nodes_max: int) -> str:
    """The Job of one attempt. A name that would be too long for a later attempt is refused at the first one.

    Raises:
        ConfigError: as ``job_name`` does.
    """
    longest = "-" + "9" * max(_ATTEMPT_DIGITS, len(str(attempt)))
    job_name(name, nodes_max=nodes_max, room_for=longest)
    return job_name(f"{name}-{attempt}", nodes_max=nodes_max)


def run_id(url: str) -> str:
    """A run directory's URL, as the nodes see it, as a label: two directories with one name are two runs."""
    return hashlib.sha256(url.removeprefix("file://").rstrip("/").encode()).hexdigest()[:16]


def label_value(value: str) -> str:
    """A value that is allowed in a label: other characters become hyphens, cut to 63."""
    clean = re.sub(r"[^A-Za-z0-9_.-]+", "-", value)[:63].strip("-_.")
    assert LABEL_VALUE.fullmatch(clean)
    return clean


def check_dns_label(value: str, *, setting: str) -> str:
    """Returns ``value``; raises ConfigError where it is no DNS label of at most 63 characters."""
    if len(value) > 63 or not DNS_LABEL.fullmatch(value):
        raise ConfigError(
            f"{setting}={value!r} is not a Kubernetes name",
            follows="the API server would refuse the object",
            remedy="use at most 63 of a-z, 0-9 and hyphens, beginning and ending with a letter or digit",
        )
    return value


def check_object_name(value: str, *, setting: str) -> str:
    """Like ``check_dns_label`` for names that may contain dots (secrets, claims, queues), at most 253 characters."""
    if len(value) > 253 or not all(DNS_LABEL.fullmatch(part) for part in value.split(".")):
        raise ConfigError(
            f"{setting}={value!r} is not the name of a Kubernetes object",
            follows="the API server would refuse the object",
            remedy="use a-z, 0-9, hyphens and dots, beginning and ending with a letter or digit",
        )
    return value


def quantity(value: str, *, setting: str) -> Decimal:
    """A Kubernetes quantity (``500m``, ``16Gi``) as a number of base units; ConfigError where it is none or zero."""
    match = QUANTITY.fullmatch(value)
    number = Decimal(match[1]) * _UNITS[match[2] or ""] if match else Decimal(0)
    if number <= 0:
        raise ConfigError(
            f"{setting}={value!r} is not a positive quantity",
            follows="the API server would refuse the pod",
            remedy="write a number with an optional unit, such as 500m, 4, 16Gi",
        )
    return number
