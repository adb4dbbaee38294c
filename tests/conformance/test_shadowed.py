"""Other folders and modules that have the names of our packages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import conformance
from conformance import siblings

ROOT = Path(conformance.__file__).parents[1]
RUN = ("run", "--in-process", "--sampler=mine:make_sampler", "--only=calls/empty")
MINE = "from reference import ReferenceSampling as make_sampler\n"
# What the console script of the wheel holds.
SCRIPT = "import sys\nfrom conformance.__main__ import main\nif __name__ == '__main__':\n    sys.exit(main())\n"


def python_in(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python in a folder, with this checkout where an installed package would lie."""
    folder.joinpath("mine.py").write_text(MINE)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def package(folder: Path, name: str, source: str = "") -> Path:
    """A package of the user's with that name."""
    file = folder / name / "__init__.py"
    file.parent.mkdir()
    file.write_text(source)
    return file


def test_another_reference_is_named_with_what_to_do(tmp_path: Path) -> None:
    file = package(tmp_path, "reference")
    done = python_in(tmp_path, "-m", "conformance", *RUN)
    assert done.returncode == 2
    assert done.stderr == (
        f"error: {file} hides the package 'reference' that sampling-conformance needs: rename it, run from another "
        "folder, or start Python with -P: `python -P -m conformance ...`\n"
    )


def test_what_the_message_says_works(tmp_path: Path) -> None:
    for name in ("reference", "optimized"):
        package(tmp_path, name)
    done = python_in(tmp_path, "-P", "-m", "conformance", *RUN, "--sampler=optimized:FlashInferSampling")
    assert done.returncode == 0, done.stderr


def test_the_packages_say_so_too(tmp_path: Path) -> None:
    file = tmp_path / "reference.py"
    file.touch()
    for code in ("import conformance; conformance.check", "from conformance import Claims", "import optimized"):
        done = python_in(tmp_path, "-c", code)
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1].startswith(f"ImportError: {file} hides the package 'reference'")


def test_a_project_with_a_reference_of_its_own_can_use_pytest(tmp_path: Path) -> None:
    package(tmp_path, "reference")
    tmp_path.joinpath("test_mine.py").write_text("import reference\ndef test_mine(): pass\n")
    done = python_in(tmp_path, "-m", "pytest", "-p", "conformance.plugin")
    assert done.returncode == 0, done.stdout
    tmp_path.joinpath("test_mine.py").write_text(
        "from conformance.plugin import SamplingConformance\n"
        "class TestMine(SamplingConformance):\n    make_sampler = 'mine:make_sampler'\n"
    )
    done = python_in(tmp_path, "-m", "pytest", "-p", "conformance.plugin")
    assert done.returncode == 2
    assert "hides the package 'reference'" in done.stdout


def test_a_folder_that_is_no_package_hides_nothing(tmp_path: Path) -> None:
    for name in ("reference", "optimized", "conformance"):
        tmp_path.joinpath(name).mkdir()
    done = python_in(tmp_path, "-c", "from conformance.siblings import refuse_shadowed; refuse_shadowed()")
    assert done.returncode == 0, done.stderr


def test_another_optimized_is_named_where_it_is_asked_for(tmp_path: Path) -> None:
    file = package(tmp_path, "optimized", MINE)
    code = """
from conformance.siblings import load
print(load("--sampler", "optimized:make_sampler").__name__)
load("--sampler", "optimized:FlashInferSampling")
    """
    done = python_in(tmp_path, "-c", code)
    assert done.stdout == "ReferenceSampling\n"
    error = done.stderr.splitlines()[-1]
    assert error.startswith("ValueError: --sampler must name something that can be imported, got 'optimized:FlashInfer")
    assert f"(found in {file}); it hides the package 'optimized' of sampling-conformance: rename it" in error


@pytest.mark.slow
def test_the_console_script_works_beside_packages_of_the_users(tmp_path: Path) -> None:
    script = tmp_path / "bin" / "sampling-conformance"
    script.parent.mkdir()
    script.write_text(SCRIPT)
    for name in ("conformance", "reference"):
        package(tmp_path, name)
    done = python_in(tmp_path, str(script), *[argument for argument in RUN if argument != "--in-process"])
    assert done.returncode == 0, done.stderr


def test_a_name_that_is_ours_is_looked_up_here_and_the_message_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(tmp_path, "conformance", MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(ValueError, match="has no attribute 'make_sampler'") as caught:
        siblings.load("--sampler", "conformance:make_sampler")
    assert f"(found in {ROOT / 'conformance' / '__init__.py'})" in str(caught.value)
    assert sys.path[0] == str(tmp_path)  # what a user names is looked for there first


def test_a_link_to_our_folder_is_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As an editable install may have it.
    link = tmp_path / "link"
    link.symlink_to(ROOT)
    monkeypatch.setattr(siblings, "HOME", link)
    assert siblings.foreign("reference") is None
    monkeypatch.setattr(siblings, "HOME", tmp_path)
    assert siblings.foreign("reference") == str(ROOT / "reference" / "__init__.py")
