"""The readers under damaged files, for a minute."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_a_damaged_file_of_any_format_gives_the_right_documents_or_an_error_with_its_name_soon() -> None:
    """In a process of its own, as a decoder's library may end it. The output names each case, to be repeated alone."""
    command = [sys.executable, "-m", "tests.io.fuzz", "--seconds", "60", "--seed", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=140, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-2000:]}"
