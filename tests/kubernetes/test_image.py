"""The image's recipe: pinned, not root, and nothing of the checkout in it that it does not need."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.kubernetes.conftest import ROOT

LINES = (ROOT / "launch" / "Dockerfile").read_text().splitlines()


def test_every_install_uses_the_constraints_file() -> None:
    text = "\n".join(LINES).replace(" \\\n", " ")
    installs = re.findall(r"pip install [^&\n]*", text)
    assert installs
    assert all("-c constraints.txt" in install for install in installs)


def test_it_ends_as_a_user_that_is_not_root_with_an_init() -> None:
    assert [line for line in LINES if line.startswith("USER")] == ["USER 1000:1000"]
    assert 'ENTRYPOINT ["tini", "--"]' in LINES


def test_only_what_is_listed_reaches_the_build() -> None:
    ignore = [
        line for line in (ROOT / "launch" / "Dockerfile.dockerignore").read_text().splitlines() if line and line[0] != "#"
    ]
    assert ignore[0] == "*"
    allowed = {line[1:] for line in ignore if line.startswith("!")}
    copied = {word for line in LINES if line.startswith("COPY") and "--from" not in line for word in line.split()[1:-1]}
    assert copied == allowed
    assert all((ROOT / name).exists() for name in allowed)


def test_what_is_installed_is_read_from_the_project_and_can_open_an_object_store() -> None:
    """The program between the quotes, as the build's shell would hand it to Python."""
    program = re.findall(r'python -c "(.*?)" > names.txt', "\n".join(LINES).replace("\\\n", ""), re.DOTALL)[0]
    told = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert {"torch", "s3fs", "fsspec", "kubernetes"} <= {re.split(r"[<>=\[]", word)[0] for word in told}


def test_the_base_can_be_chosen_and_both_stages_stand_on_it() -> None:
    assert [line for line in LINES if line.startswith("FROM")] == ["FROM ${BASE} AS build", "FROM ${BASE}"]
    assert any(line.startswith("ARG BASE=python:3.11") for line in LINES)
