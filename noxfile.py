"""What developers and CI machines run: `nox -l` lists it. Arguments after `--` reach the program in a session."""

import importlib
import importlib.util
import sys
import zipfile
from pathlib import Path

import nox

nox.needs_version = ">=2025.5.1"
nox.options.default_venv_backend = "virtualenv"
nox.options.reuse_venv = "yes"  # torch is large
nox.options.sessions = ["tests", "lint", "typecheck"]

SAMPLERS = ("optimized:FlashInferSampling", "reference:ReferenceSampling")
BASELINES = {"cpu": ("TorchComposition",), "cuda": ("FlashInferComposition", "FlashInferPath")}
PACKAGES = ("conformance", "optimized", "reference")
DEV = nox.project.load_toml("pyproject.toml")["project"]["optional-dependencies"]["dev"]


def has_gpu_stack() -> bool:
    """Whether the Python that runs nox has FlashInfer, and a torch that sees a CUDA device."""
    if not all(importlib.util.find_spec(name) for name in ("torch", "flashinfer")):
        return False
    return bool(importlib.import_module("torch").cuda.is_available())


# Where the machine brings the GPU packages, matched to its driver, they are used as they are.
GPU_BACKEND = "none" if has_gpu_stack() else "virtualenv"


def gpu_python(session: nox.Session) -> str:
    """Install what a GPU session needs, or take what the machine has; fail without a CUDA device."""
    python = sys.executable
    if GPU_BACKEND != "none":
        session.install("-e", ".[dev,flashinfer]")
        python = "python"
    session.run(python, "-c", "import torch; torch.cuda.init()")
    return python


def judge(session: nox.Session, python: str, sampler: str, *options: str) -> None:
    """Run the conformance suite on one sampler."""
    session.run(python, "-m", "conformance", "run", "--sampler", sampler, *options, *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests that need no GPU."""
    session.install("-c", "constraints-cpu.txt", "-e", ".[dev]")
    # A process a core, each with one thread. Tests that need a GPU report themselves as not run.
    alone = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    options = "-n", "auto", "--benchmark-disable"  # benchmarks run once each, as tests
    session.run("python", "-m", "pytest", *options, *session.posargs, env=alone)


@nox.session(default=False)
def conformance(session: nox.Session) -> None:
    """Judge both samplers on the CPU."""
    session.install("-c", "constraints-cpu.txt", "-e", ".")
    for sampler in SAMPLERS:
        judge(session, "python", sampler, "--tier", "quick", "--device", "cpu")


@nox.session
def lint(session: nox.Session) -> None:
    """Check the code's style and its formatting."""
    session.install(*(requirement for requirement in DEV if requirement.startswith("ruff")))
    session.run("ruff", "check", *session.posargs)
    session.run("ruff", "format", "--check", *session.posargs)


@nox.session
def typecheck(session: nox.Session) -> None:
    """Check the types."""
    session.install("-c", "constraints-cpu.txt", "-e", ".[dev]")
    session.run("mypy", *session.posargs)


@nox.session(default=False, venv_backend=GPU_BACKEND)
def tests_gpu(session: nox.Session) -> None:
    """Run the tests that need a GPU."""
    session.run(gpu_python(session), "-m", "pytest", "-m", "gpu", *session.posargs)


@nox.session(default=False, venv_backend=GPU_BACKEND)
def conformance_gpu(session: nox.Session) -> None:
    """Judge both samplers on the GPU."""
    python = gpu_python(session)
    for sampler in SAMPLERS:
        judge(session, python, sampler, "--tier", "full", "--device", "cuda")


def speed_python(session: nox.Session, gpu: str, cpu: str) -> tuple[str, str]:
    """Install what a session on speed needs. Returns the Python, and the one of the two that this machine is for."""
    if GPU_BACKEND == "none":
        session.log(f"a CUDA device and FlashInfer are here: {gpu}")
        return gpu_python(session), gpu
    session.log(f"no CUDA device with FlashInfer here: {cpu}")
    session.install("-c", "constraints-cpu.txt", "-e", ".[benchmark,report]")
    return "python", cpu


@nox.session(default=False, venv_backend=GPU_BACKEND)
def gate(session: nox.Session) -> None:
    """Hold a sampler to its speed budgets: the dispatcher where there is a GPU, else the reference."""
    python, budgets = speed_python(session, *(f"tests/benchmarks/budgets-{kind}.toml" for kind in ("h200", "cpu")))
    session.run(python, "-m", "conformance", "gate", "--budgets", budgets, *session.posargs)


@nox.session(default=False, venv_backend=GPU_BACKEND)
def bench(session: nox.Session) -> None:
    """Time the samplers here and what they are compared with, on the GPU where there is one."""
    python, device = speed_python(session, "cuda", "cpu")
    named = [*SAMPLERS, *(f"conformance.measure.baselines:{name}" for name in BASELINES[device])]
    samplers = [option for name in named for option in ("--sampler", name)]
    session.run(python, "-m", "conformance", "bench", "--device", device, *samplers, *session.posargs)


@nox.session(default=False)
def build(session: nox.Session) -> None:
    """Build the wheel, and check that it holds the three packages whole and nothing else."""
    folder = Path(session.create_tmp())
    for old in folder.glob("*.whl"):
        old.unlink()
    session.run("python", "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), ".")
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        built = {name for name in archive.namelist() if ".dist-info/" not in name}
    source = {path.as_posix() for package in PACKAGES for path in Path(package).rglob("*") if path.is_file()}
    source = {name for name in source if "__pycache__" not in name}
    if built != source:
        session.error(f"only in the wheel or only in the source: {sorted(built ^ source)}")
    session.log(f"{wheel.name} holds {len(built)} files of {', '.join(PACKAGES)}")
