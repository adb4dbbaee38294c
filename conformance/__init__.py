"""Judges any token sampler against the law: `conformance.check(make_sampler)`."""

from conformance.adapters import from_function
from conformance.claims import Claims
from conformance.evidence import Evidence
from conformance.report import Report, Result
from conformance.runner import check
from conformance.streams import Stream

__all__ = ["Claims", "Evidence", "Report", "Result", "Stream", "check", "from_function"]
