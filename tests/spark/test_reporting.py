"""The report: whole, safe to open, and saying what was found."""

from __future__ import annotations

import datetime
from html.parser import HTMLParser

from spark_jobs.comparing import CodeVerdict, Comparison, Difference
from spark_jobs.firing import Errors, Verdict
from spark_jobs.replay import Outcome
from spark_jobs.reporting import Findings, html, markdown, sections

AT = datetime.datetime(2026, 1, 2, 3, 4, tzinfo=datetime.UTC)

DIFFERENCE = Difference(
    code=310,
    field="remark",
    kind="changed",
    answers=10,
    differ=2,
    noise=0,
    verdict="differs",
    file="a.capture",
    position=99,
    expected="fine | <b>really</b>",
    found=None,
)
FINDINGS = Findings(
    replay=Outcome(
        outcomes={"answered": 12_345},
        unmapped={"recallHandle": 1},
        pacing_p50_ms=0.5,
        pacing_p99_ms=3.21,
        rate=5_000.0,
    ),
    comparison=Comparison(
        compared=10,
        only_in_baseline=0,
        only_in_candidate=0,
        has_noise=True,
        codes=[CodeVerdict(code=310, name="SEND_MESSAGE_V2", answers=10, verdict="differs")],
        differences=[DIFFERENCE],
    ),
    firing=Verdict(
        messages=3,
        fired=2,
        lost=1,
        doubled=0,
        early=0,
        recalled=0,
        fired_though_recalled=0,
        not_due=0,
        not_watched=0,
        without_id=0,
        groups=[
            Errors(
                by="delay",
                name="under 10 s",
                messages=3,
                fired=2,
                lost=1,
                doubled=0,
                early=0,
                p99=7.5,
            )
        ],
        samples=[
            {"outcome": "lost", "topic": "t", "message_id": "A", "due_ms": 1, "fired_ms": None}
        ],
    ),
)


class Reader(HTMLParser):
    """Notes open tags and what would be fetched from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_well_formed_and_needs_nothing_else() -> None:
    page = html("Replay of <Monday>", AT, sections(FINDINGS))
    reader = Reader()
    reader.feed(page)
    assert reader.open == []
    assert reader.links == []
    assert reader.seen >= {"table", "svg", "rect", "h2"}
    assert "script" not in reader.seen
    assert "b" not in reader.seen, "what was recorded is text, not markup"
    assert "Replay of &lt;Monday&gt;" in page


def test_both_forms_say_what_was_found() -> None:
    found = sections(FINDINGS)
    assert [section.is_good for section in found] == [False, False, None]
    for text in (html("r", AT, found), markdown("r", AT, found)):
        for said in ("the answers to 1 of 1 request codes differ", "1 lost", "12,345", "7.5"):
            assert said in text
    assert "fine \\| " in markdown("r", AT, found)


def test_only_what_there_is_is_reported() -> None:
    assert sections(Findings()) == []
    [only] = sections(Findings(replay=FINDINGS.replay))
    assert only.title == "Replay"
