"""Every link of the README and the documents leads to a file of the project and to a heading in it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

PROJECT: Final = Path(__file__).parent.parent.parent
PAGES: Final = (PROJECT / "README.md", *sorted(PROJECT.glob("docs/*.md")))

_BLOCK: Final = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_LINK: Final = re.compile(r"\]\(([^)\s]+)\)")
_SHOWN: Final = re.compile(r"\[([^\]]*)\]\([^)]*\)")


def anchors(text: str) -> set[str]:
    """Return the anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", _BLOCK.sub("", text), re.MULTILINE)
    names = (_SHOWN.sub(r"\1", heading).lower() for heading in headings)
    return {re.sub(r"[^\w\- ]", "", name).replace(" ", "-") for name in names}


def broken(page: Path, text: str) -> list[str]:
    """Return the links of a page's text that lead nowhere; those to other sites are not looked at."""
    found = []
    for link in _LINK.findall(_BLOCK.sub("", text)):
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else page
        if link.startswith(("http:", "https:")):
            continue
        if not target.exists() or (anchor and anchor not in anchors(target.read_text())):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    assert broken(page, page.read_text()) == []


def test_links_that_lead_nowhere_are_found() -> None:
    page = PROJECT / "README.md"
    right = (
        "[a](#quick-start) [b](docs/http.md#who-has-access) [c](deploy/) [d](https://x.example/#y)"
    )
    assert broken(page, right) == []
    wrong = "[a](#nothing) [b](docs/http.md#nothing) [c](docs/nothing.md)"
    assert broken(page, wrong) == ["#nothing", "docs/http.md#nothing", "docs/nothing.md"]
