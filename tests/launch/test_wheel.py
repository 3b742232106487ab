"""The installed package: the same command from another directory, with its configs inside."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_wheel_in_another_directory_composes_plans_and_checks(tmp_path: Path) -> None:
    source = tmp_path / "source"
    ignore = shutil.ignore_patterns(
        ".git", ".venv", "runs", "__pycache__", ".mypy_cache", ".ruff_cache", ".hypothesis", "tests"
    )
    shutil.copytree(ROOT, source, ignore=ignore)  # a build must not write into the checkout
    wheels = tmp_path / "wheels"
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(wheels),
        str(source),
    ]
    subprocess.run(build, check=True, timeout=120)
    (wheel,) = wheels.glob("*.whl")
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    env = {**os.environ, "PYTHONPATH": str(site), "XDG_STATE_HOME": str(tmp_path / "state")}

    def zephon(*argv: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "zephon.launch", *argv]
        return subprocess.run(command, cwd=elsewhere, env=env, capture_output=True, text=True, timeout=120, check=False)

    plan = zephon("plan", "conf=exp1", "nodes=4")
    assert plan.returncode == 0, plan.stderr
    assert '"nodes": 4' in plan.stdout
    assert str(elsewhere / "runs" / "exp1") in plan.stdout
    doctor = zephon("doctor", "conf=exp1", "nodes=4")
    assert doctor.returncode == 0, doctor.stdout
    code = "import zephon; from zephon.launch.config.packaged import package_data; "
    code += "print(zephon.__file__, package_data('k8s'), package_data('launch'))"
    where = subprocess.run([sys.executable, "-c", code], cwd=elsewhere, env=env, capture_output=True, text=True, check=True)
    assert where.stdout.count(str(site)) == 3
    assert os.listdir(elsewhere) == []
