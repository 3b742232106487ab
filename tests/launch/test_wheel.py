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
@pytest.mark.timeout(900)
def test_a_wheel_in_another_directory_composes_plans_checks_and_runs_the_demo(tmp_path: Path) -> None:
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

    def zephon(*argv: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "zephon.launch", *argv]
        return subprocess.run(command, cwd=elsewhere, env=env, capture_output=True, text=True, timeout=timeout, check=False)

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
    for name in ("LICENSE", "METADATA"):
        assert list(site.glob(f"zephon_elastic-*.dist-info/**/{name}")), name
    done = zephon("demo", "conf=bytes", "trainer.steps=6", "runs=demo", timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "YES: at world sizes 4" in done.stdout, "so few steps may be done before the stop arrives"
    assert "every one of 6 steps had the same global batch" in done.stdout
