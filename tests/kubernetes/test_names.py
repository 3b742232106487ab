"""A name either gives valid objects or is refused before anything is sent."""

from __future__ import annotations

import re
from decimal import Decimal

import pytest

from zephon.errors import ConfigError
from zephon.launch.backends.kubernetes.names import DNS_LABEL, attempt_name, check_object_name, job_name, label_value, quantity


@pytest.mark.parametrize(
    ("name", "expected"),
    [("my-role", "my-role"), ("a.b", "a-b"), ("X_y", "x-y"), ("exp 1/ä", "exp-1"), ("--a--", "a")],
)
def test_a_name_becomes_a_dns_label(name: str, expected: str) -> None:
    assert job_name(name, nodes_max=8) == expected


@pytest.mark.parametrize("name", ["", "---", "ä", "名前"])
def test_a_name_without_usable_characters_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="no letter or digit"):
        job_name(name, nodes_max=8)


@pytest.mark.parametrize("nodes_max", [1, 10, 11, 100, 1000])
def test_the_longest_accepted_name_still_fits_with_index_and_suffix(nodes_max: int) -> None:
    longest = next(n for n in range(63, 0, -1) if _accepted("a" * n, nodes_max))
    assert len(f"{'a' * longest}-{nodes_max - 1}-x7k2p") == 63
    with pytest.raises(ConfigError, match=f"use a name of at most {longest} characters"):
        job_name("a" * 80, nodes_max=nodes_max)


def _accepted(name: str, nodes_max: int) -> bool:
    try:
        return bool(DNS_LABEL.fullmatch(job_name(name, nodes_max=nodes_max)))
    except ConfigError:
        return False


def test_any_text_becomes_a_label_value() -> None:
    assert label_value("a b/c") == "a-b-c"
    assert label_value("x" * 80) == "x" * 63
    assert label_value("ä") == ""


@pytest.mark.parametrize(("text", "number"), [("500m", "0.5"), ("4", "4"), ("16Gi", str(16 * 2**30)), ("1.5k", "1500")])
def test_a_quantity_is_a_number_of_base_units(text: str, number: str) -> None:
    assert quantity(text, setting="x") == Decimal(number)


@pytest.mark.parametrize("text", ["", "0", "-1", "4GB", "Gi", "1 Gi", "1e3"])
def test_a_quantity_that_kubernetes_would_refuse_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"shm_size={text!r} is not a positive quantity")):
        quantity(text, setting="shm_size")


@pytest.mark.parametrize("name", ["A", "a_b", ".a", "a..b", "a" * 254])
def test_a_reference_to_an_impossible_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="not the name of a Kubernetes object"):
        check_object_name(name, setting="queue")


def test_a_name_that_is_too_long_for_a_later_attempt_is_refused_at_the_first() -> None:
    longest = next(n for n in range(63, 0, -1) if _accepted_attempt("a" * n, 1))
    assert all(_accepted_attempt("a" * longest, attempt) for attempt in (9, 10, 99, 9999))
    assert not any(_accepted_attempt("a" * (longest + 1), attempt) for attempt in (1, 10))


def _accepted_attempt(name: str, attempt: int) -> bool:
    try:
        return len(f"{attempt_name(name, attempt, nodes_max=16)}-15-x7k2p") <= 63
    except ConfigError:
        return False


def test_a_name_that_begins_with_a_digit_gives_a_service_that_the_api_server_takes() -> None:
    assert attempt_name("2026-run", 3, nodes_max=8) == "run-2026-run-3"
