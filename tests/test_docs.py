"""What the documents say of the code is true of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from conformance.claims import Claims
from conformance.clauses import CLAUSES
from conformance.spec import page

ROOT = Path(__file__).parents[1]
PAGES = [path for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")) if path.name != "LICENSE"]


def test_the_specification_is_the_clauses() -> None:
    assert (ROOT / "docs/spec.md").read_text(encoding="utf-8") == page(), (
        "run: python -m conformance spec > docs/spec.md"
    )


def test_every_clause_is_on_the_page_once_with_a_source_and_a_check() -> None:
    entries = re.findall(r"^### (\S+)", page(), flags=re.MULTILINE)
    assert sorted(entries) == sorted(CLAUSES)
    for clause in CLAUSES.values():
        assert re.fullmatch(r"contract|law \d( (and|to) \d)*|claims\.\w+", clause.source), clause.id
        if clause.source.startswith("claims."):
            assert hasattr(Claims(), clause.source.removeprefix("claims.")), clause.id
        assert clause.must.endswith("."), clause.id
        file = ROOT / (clause.check.__module__.replace(".", "/") + ".py")
        assert f"def {clause.check.__name__}(" in file.read_text(encoding="utf-8"), clause.id


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(path: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text(encoding="utf-8"))
    lost = [link for link in links if "://" not in link and not (path.parent / link).exists()]
    assert lost == []
