"""Errors in three parts, and the document that an error is about."""

from __future__ import annotations

import pickle

from zephon.errors import ConfigError, DataError, ErrorAddress, address_error, address_of


def test_an_error_says_what_is_wrong_what_would_follow_and_what_to_do() -> None:
    error = ConfigError("lanes=7 does not divide 64", follows="some lanes would get less", remedy="use 8")
    assert str(error) == "lanes=7 does not divide 64\n  why it matters: some lanes would get less\n  fix: use 8"


def test_a_consequence_that_is_only_the_refusal_is_the_class_s_and_not_printed() -> None:
    error = ConfigError("lanes=0", remedy="use at least 1")
    assert error.follows == "nothing starts"
    assert str(error) == "lanes=0\n  fix: use at least 1"
    again = ConfigError(f"lanes: {error.what}", follows=error.follows, remedy=error.remedy)
    assert str(again) == "lanes: lanes=0\n  fix: use at least 1", "also where an error is raised again under another name"


def test_an_error_crosses_processes_with_its_notes_and_its_address() -> None:
    error = DataError("a line is not JSON", remedy="repair it")
    address_error(error, ErrorAddress(3, 70, kind="not JSON"))
    error.add_note("lane 2")
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.__notes__) == (DataError, str(error), ["lane 2"])
    assert address_of(copy) == ErrorAddress(3, 70, kind="not JSON")


def test_an_error_of_user_code_can_be_addressed_too() -> None:
    error = ZeroDivisionError("division by zero")
    assert address_of(error) is None
    address_error(error, ErrorAddress(0, 5, 1))
    assert address_of(error) == ErrorAddress(0, 5, 1)
