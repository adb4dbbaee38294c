"""GPU tests without a GPU are skipped, and counted at the end of the run; torch repeats its warnings."""

from collections.abc import Iterator

import pytest
import torch

NO_DEVICE = "no CUDA device"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason=NO_DEVICE))


@pytest.fixture(autouse=True)
def _warn_every_time() -> Iterator[None]:
    """What torch warns of once a process is raised in every test: their order must not matter."""
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(before)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = terminalreporter.stats
    not_run = [test for test in (*reports.get("deselected", ()), *reports.get("skipped", ())) if "gpu" in test.keywords]
    if not_run:
        reason = "deselected or skipped" if torch.cuda.is_available() else NO_DEVICE
        terminalreporter.write_line(f"{len(not_run)} gpu tests not run: {reason}")
