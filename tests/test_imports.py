"""Imports run one way: conformance -> reference, optimized -> reference. None of the three loads what is optional."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# What a package may import beside the standard library and itself.
ALLOWED = {
    "reference": {"numpy", "torch"},
    "optimized": {"reference", "torch"},
    "conformance": {"numpy", "reference", "rich", "scipy", "torch"},
}
# What single files may import on top of that. Nothing imports it before somebody asks for what it is there for.
ALLOWED_IN_FILE = {
    "conformance/adapters/transformers.py": {"transformers"},
    "conformance/measure/baselines.py": {"flashinfer"},
    "conformance/measure/budgets.py": {"tomlkit"},
    "conformance/measure/read_kernel.py": {"triton"},
    "conformance/measure/roofline.py": {"matplotlib"},
    "conformance/plugin.py": {"pytest"},
    "conformance/report/charts.py": {"matplotlib"},
    "conformance/report/html.py": {"markupsafe"},
    "conformance/report/page.py": {"jinja2", "markupsafe"},
    "conformance/report/schema.py": {"jsonschema"},
    "conformance/strategies.py": {"hypothesis"},
    "conformance/suite.py": {"pytest"},
    "optimized/kernels/flashinfer.py": {"flashinfer"},
    "optimized/kernels/slot_softmax.py": {"triton"},
}
NEVER_LOADED = {"flashinfer", "jinja2", "jsonschema", "markupsafe", "matplotlib", "transformers", "triton"}

FILES = [path.relative_to(ROOT).as_posix() for package in ALLOWED for path in sorted((ROOT / package).rglob("*.py"))]


def imported_modules(source: str) -> Iterator[str]:
    """Names of the modules that a source imports anywhere, also by a call with a literal name."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module
            case ast.Call(
                func=ast.Name(id="__import__" | "import_module") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(module)), *_],
            ):
                yield module


def refused_imports(file: str, source: str) -> set[str]:
    """The top-level packages that `file`, a path from the root, imports and must not."""
    package = file.partition("/")[0]
    allowed = sys.stdlib_module_names | {package} | ALLOWED[package] | ALLOWED_IN_FILE.get(file, set())
    return {module.partition(".")[0] for module in imported_modules(source)} - allowed


def loaded_by(module: str) -> set[str]:
    """The top-level modules that importing `module` loads in a fresh interpreter, beyond those that torch loads."""
    code = f"import sys, torch; before = set(sys.modules); import {module}; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    return {name.partition(".")[0] for name in done.stdout.split()}


@pytest.mark.parametrize("file", FILES)
def test_file_imports_what_its_package_may(file: str) -> None:
    assert refused_imports(file, (ROOT / file).read_text(encoding="utf-8")) == set()


@pytest.mark.parametrize("package", ALLOWED)
def test_every_package_has_files(package: str) -> None:
    assert f"{package}/__init__.py" in FILES


@pytest.mark.parametrize(
    ("file", "source", "refused"),
    [
        ("conformance/cases.py", "import optimized", {"optimized"}),
        ("conformance/cases.py", "import importlib\nimportlib.import_module('optimized.routes')", {"optimized"}),
        ("optimized/routes.py", "def route():\n    from flashinfer import sampling", {"flashinfer"}),
        ("optimized/routes.py", "from conformance.claims import Claims", {"conformance"}),
        ("optimized/kernels/slot_softmax.py", "import triton, triton.language as tl, flashinfer", {"flashinfer"}),
        ("reference/law.py", "if True:\n    import numpy.typing, scipy.stats", {"scipy"}),
        ("reference/law.py", "import math\nimport torch\nfrom . import context\nfrom reference.law import law", set()),
    ],
)
def test_the_rule_refuses(file: str, source: str, refused: set[str]) -> None:
    assert refused_imports(file, source) == refused


@pytest.mark.parametrize("package", ALLOWED)
def test_importing_loads_nothing_optional(package: str) -> None:
    loaded = loaded_by(package)
    assert package in loaded
    assert loaded & NEVER_LOADED == set()
