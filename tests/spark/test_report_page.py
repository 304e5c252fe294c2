"""The report in a real browser: it needs no other file, and it fits a phone."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from selenium.webdriver.common.by import By

from spark_jobs.pages import Plot, Section, Table, html
from tests.browser import PHONE, Browser

MADE_AT = datetime.datetime(2026, 2, 3, 4, 5, tzinfo=datetime.UTC)


@pytest.mark.live
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [(1280, 900), PHONE], ids=["desk", "phone"])
def test_the_page_opens(
    browser: Browser, tmp_path: Path, size: tuple[int, int], dark: bool
) -> None:
    columns = tuple(f"column {number}" for number in range(12))
    table = Table("Wide", columns, [("a" * 40, *range(11)) for _ in range(5)])
    plot = Plot("Requests", "ms", [("SEND_MESSAGE_V2", 40.0), ("PULL_MESSAGE", 20.0)])
    file = tmp_path / "report.html"
    parts = [Section("Answers", "the same", True, [plot, table])]
    file.write_text(html("Traffic of Monday", MADE_AT, parts))
    page = browser.open(file, width=size[0], height=size[1], dark=dark)
    assert page.title == "Traffic of Monday"
    assert browser.errors() == []
    assert browser.overflow() == 0
    bars = page.find_elements(By.CSS_SELECTOR, ".plot rect")
    long, short = (bar.rect["width"] for bar in bars)
    assert long == pytest.approx(2 * short, rel=0.1)
    background = page.find_element(By.TAG_NAME, "body").value_of_css_property("background-color")
    red = int(background.partition("(")[2].partition(",")[0])
    assert (red < 128) == dark
