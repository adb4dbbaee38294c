"""Tests that need what the machine lacks are skipped, and counted at the end; torch repeats its warnings."""

import importlib.util
import shutil
from collections.abc import Iterator

import pytest
import torch

BROWSERS = ("chromium", "chromium-browser", "google-chrome")

# What tests with a marker lack on this machine; "" for nothing.
LACKS = {
    "gpu": "" if torch.cuda.is_available() else "no CUDA device",
    "browser": f"none of {', '.join(BROWSERS)}" if not any(map(shutil.which, BROWSERS))
    else "" if importlib.util.find_spec("playwright") else "no playwright",
}  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for marker, lack in LACKS.items():
            if lack and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=lack))


@pytest.fixture(scope="session")
def browser() -> str:
    """Path of a Chromium."""
    return next(path for path in map(shutil.which, BROWSERS) if path)


@pytest.fixture(autouse=True)
def _warn_every_time() -> Iterator[None]:
    """What torch warns of once a process is raised in every test: their order must not matter."""
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(before)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = terminalreporter.stats
    tests = (*reports.get("deselected", ()), *reports.get("skipped", ()))
    for marker, lack in LACKS.items():
        if not_run := [test for test in tests if marker in test.keywords]:
            terminalreporter.write_line(f"{len(not_run)} {marker} tests not run: {lack or 'deselected or skipped'}")
