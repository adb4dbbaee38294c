"""What a user gets: the wheel, installed where no checkout is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]

# The token that crosses p is dropped, unless it is the first.
MINE = """
import torch
from conformance import from_function


def sample(logits, temperature, top_k, top_p, rng):
    probs = torch.softmax(logits.double() / temperature.clamp(min=1e-6)[:, None], dim=1)
    mass, order = probs.sort(dim=1, descending=True)
    keep = mass.cumsum(1) <= torch.where(top_p == 0, 2.0, top_p)[:, None]
    keep[:, 0] = True
    kept = torch.zeros_like(probs).scatter(1, order, mass * keep)
    return torch.multinomial(kept, 1, generator=rng)[:, 0]


make_sampler = from_function(sample)
"""
TEST = """
import conformance, mine


class TestMine(conformance.SamplingConformance):
    make_sampler = mine.make_sampler
"""
FAULTY = "top-p/crossing-token/each-gap-n8-V8-fp32"


def run(folder: Path, *command: str | Path, code: int = 0) -> str:
    """What a command prints in a folder, with nothing of this checkout on its path."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHONPATH", "PYTEST"))}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = ("wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir")
    run(ROOT, sys.executable, "-m", "pip", *build, folder, ".")
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def user(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A folder of a user's, and the programs of an environment with the wheel, and with torch and pytest from here."""
    folder = tmp_path_factory.mktemp("user")
    run(folder, sys.executable, "-m", "venv", "--without-pip", "venv")
    python = folder / "venv" / "bin" / "python"
    run(folder, sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", wheel)
    site = run(folder, python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    Path(site, "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    folder.joinpath("mine.py").write_text(MINE)
    folder.joinpath("test_mine.py").write_text(TEST)
    return folder, python.parent


def test_the_wheel_holds_three_packages_whole(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    packages = {"conformance", "optimized", "reference"}
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == packages
    assert {f"{package}/py.typed" for package in packages} <= names
    assert "conformance/report/schema.json" in names
    here = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("conformance/report/templates/*")}
    assert here
    assert here <= names


def test_pytest_finds_the_fault(user: tuple[Path, Path]) -> None:
    folder, programs = user
    suite = ("--pyargs", "conformance.suite", "--sampler", "mine:make_sampler", "test_mine.py")
    told = run(folder, programs / "python", "-m", "pytest", *suite, "-k", "top-p/crossing-token", code=1)
    assert f"FAILED conformance/suite.py::TestSampler::test_law[{FAULTY}]" in told
    assert f"FAILED test_mine.py::TestMine::test_law[{FAULTY}]" in told


def test_the_command_finds_it_and_its_reproducer_shows_it(user: tuple[Path, Path]) -> None:
    folder, programs = user
    options = ("--only", FAULTY, "--report", "report.json")
    told = run(folder, programs / "sampling-conformance", "run", "--sampler", "mine:make_sampler", *options, code=1)
    (result,) = json.loads(folder.joinpath("report.json").read_text())["results"]
    assert result["reproducer"] in told
    (failed, *_) = (each for each in result["evidence"] if not each["passed"])
    shown = run(folder, programs / "python", "-c", result["reproducer"])
    assert failed["observed"] in shown
    assert f"p_value={failed['p_value']!r}" in shown
