"""Every relative link in the documents leads to a file."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\[[^\]]+\]\(([^)#]+)")


def broken(page: Path, text: str) -> list[str]:
    targets = [t for t in LINK.findall(text) if "://" not in t]
    return [t for t in targets if not (page.parent / t).exists()]


@pytest.mark.parametrize("page", PAGES, ids=[p.name for p in PAGES])
def test_links_lead_somewhere(page):
    assert broken(page, page.read_text()) == []


def test_a_broken_link_is_found():
    assert broken(ROOT / "README.md", "[x](docs/nowhere.md)") == ["docs/nowhere.md"]
