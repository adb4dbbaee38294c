"""Times samplers side by side: `Session`. Ratios with intervals, a floor, and a check of the calls that were timed.

session = Session({"mine": make_sampler, "composition": TorchComposition}, device="cpu")
workload = Workload.of("n8-V32768-fp32-topk50")
timed = {name: Timed(name, workload, "cold") for name in ("mine", "composition", READ)}
session.time(timed.values(), rounds=20)
print(session.ratio(timed["mine"], timed["composition"]), session.wrong("mine", workload))
"""

from conformance.measure.clock import KINDS, Kind
from conformance.measure.counts import COUNTS, Counts
from conformance.measure.ratio import LEAST_ROUNDS, Ratio, paired_ratio
from conformance.measure.session import READ, Session, Timed
from conformance.measure.workload import OPTIONS, Workload

__all__ = [
    "COUNTS", "KINDS", "LEAST_ROUNDS", "OPTIONS", "READ", "Counts", "Kind", "Ratio", "Session", "Timed", "Workload",
    "paired_ratio",
]  # fmt: skip
