"""Judges any token sampler against the law: `conformance.check(make_sampler)`."""

from conformance.claims import Claims
from conformance.evidence import Evidence
from conformance.report import Report, Result
from conformance.runner import check

__all__ = ["Claims", "Evidence", "Report", "Result", "check"]
