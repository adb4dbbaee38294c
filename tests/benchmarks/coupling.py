"""Draw-exact coupling on a GPU: what each kernel's draws showed, and what small faults do to it.

``python -m tests.benchmarks.coupling [--markdown FILE]`` runs the `coupling` clauses of tier "full" on the kernels that
FlashInfer documents by their source, on the samplers of this project, and on samplers with one fault each.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track

from conformance import Report, check
from optimized import FlashInferSampling
from reference import ReferenceSampling
from tests.gpu import samplers

SOUND: dict[str, tuple[Any, list[str]]] = {
    "sampling_from_probs": (samplers.kernel_unfiltered, ["undirected/peaked-none", "directed/edges-none"]),
    "top_p_sampling_from_probs": (samplers.kernel_top_p, ["undirected/peaked-top-p", "directed/edges-top-p"]),
    "top_k_sampling_from_probs": (samplers.kernel_top_k, ["undirected/peaked-top-k", "directed/edges-top-k"]),
    "FlashInferSampling": (FlashInferSampling, ["undirected", "directed"]),
    "ReferenceSampling": (ReferenceSampling, ["undirected"]),
}

FAULTS: dict[str, tuple[Any, list[str]]] = {
    "one bit of the offset wrong": (samplers.WrongOffsetBit, ["undirected/peaked-none", "directed/edges-none"]),
    "row counter off by one": (samplers.RowOffByOne, ["undirected/peaked-none", "undirected/peaked-top-p"]),
    "nucleus edge moved by one token": (samplers.EdgeByOne, ["undirected/peaked-top-k", "directed/edges-top-p"]),
    "1e-5 of mass moved between two tokens": (samplers.MovedMass, ["directed/edges-none"]),
}

SEEDS = (None, 1, 2, 3, 4)


def run(factory: Any, only: list[str], seed: int | None = None) -> Report:
    """The coupling checks of those cases."""
    return check(factory, tier="full", device="cuda", only=[f"coupling/{each}" for each in only], seed=seed)


def sound_rows() -> Iterator[list[str]]:
    """One line a check."""
    for name, (factory, only) in track(SOUND.items(), console=Console(stderr=True), description="kernels"):
        for result in run(factory, only).results:
            for each in result.evidence:
                draws, sees = f"{each.draws:,}", f"{each.detectable:.2g}"
                yield [
                    name,
                    result.id.removeprefix("coupling/"),
                    draws,
                    each.observed,
                    each.allowed,
                    sees,
                    result.status,
                ]


def fault_rows() -> Iterator[list[str]]:
    """One line a fault and check: in how many runs of different seeds it was seen, and the first sight of it."""
    for name, (factory, only) in track(FAULTS.items(), console=Console(stderr=True), description="faults"):
        reports = [run(factory, only, seed) for seed in SEEDS]
        for i, first in enumerate(reports[0].results):
            seen = sum(report.results[i].status == "fail" for report in reports)
            observed = first.failed[0].observed if first.failed else ""
            yield [name, first.id.removeprefix("coupling/"), f"{seen} of {len(SEEDS)}", observed]


def table(header: list[str], rows: Iterator[list[str]]) -> str:
    """GitHub's kind of table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "/") for cell in line) + " |" for line in lines) + "\n"


def main() -> int:
    """Print both tables, and write them if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    device = torch.cuda.get_device_name()
    text = f"{device}, torch {torch.__version__}, tier full.\n\n"
    text += table(["sampler", "check", "draws judged", "observed", "allowed", "sees", "verdict"], sound_rows()) + "\n"
    text += table(["fault", "check", "seen", "first sight"], fault_rows())
    print(text, end="")  # noqa: T201  # the command's output
    if options.markdown:
        options.markdown.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
