"""What runs that pytest-benchmark saves say of their machine."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from conformance.measure.session import card
from conformance.runner import environment

CHANGING = {"SM clock", "memory clock", "temperature"}
"""Of the card, from minute to minute. pytest-benchmark warns of each difference in `machine_info` between two runs."""


def environments() -> dict[str, dict[str, str]]:
    """Of each device here, what `Session.environment` holds of it, as it is now."""
    devices = [torch.device("cpu"), *[torch.device("cuda")] * torch.cuda.is_available()]
    return {device.type: {**environment(device), **card(device)} for device in devices}


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_machine_info(machine_info: dict[str, Any]) -> None:
    machine_info["environment"] = {
        device: {name: value for name, value in found.items() if name not in CHANGING}
        for device, found in environments().items()
    }


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_json(output_json: dict[str, Any]) -> None:
    """With the card's clocks, as they are when the run has ended."""
    output_json["environment"] = environments()
