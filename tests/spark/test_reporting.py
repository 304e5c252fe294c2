"""The report: whole, safe to open, and with everything that was found."""

from __future__ import annotations

import datetime
from html.parser import HTMLParser

import msgspec

from spark_jobs.comparing import CodeVerdict, Comparison, Difference, FeatureVerdict
from spark_jobs.firing import Errors, Verdict
from spark_jobs.pages import Plot, Section, Table, html, markdown
from spark_jobs.replay import Outcome
from spark_jobs.reporting import sections

AT = datetime.datetime(2026, 1, 2, 3, 4, tzinfo=datetime.UTC)

DIFFERENCE = Difference(
    code=310,
    field="remark",
    kind="changed",
    answers=10,
    differ=2,
    noise=0,
    verdict="differs",
    first_ns=1_700_000_000_123_000_000,
    last_ns=1_700_000_001_000_000_000,
    file="a.capture",
    position=99,
    expected="fine | <b>really</b>",
    found=None,
)
REPLAY = (
    "replay",
    Outcome(
        outcomes={"answered": 12_345},
        unmapped={"recallHandle": 1},
        pacing_p50_ms=0.5,
        pacing_p99_ms=3.21,
        rate=5_000.0,
    ),
)
COMPARISON = (
    "compare",
    Comparison(
        compared=10,
        only_in_baseline=0,
        only_in_candidate=0,
        has_noise=True,
        codes=[CodeVerdict(code=310, name="SEND_MESSAGE_V2", answers=10, verdict="differs")],
        features=[
            FeatureVerdict(
                name="recall",
                answers=10,
                differ=2,
                verdict="differs",
                fields=["310 remark"],
                first_ns=1_700_000_000_123_000_000,
            )
        ],
        differences=[DIFFERENCE],
    ),
)
FIRING = (
    "verify",
    Verdict(
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
                by="all",
                name="all",
                messages=3,
                fired=2,
                lost=1,
                doubled=0,
                early=0,
                p99=1234.5,
                max=2003.0,
            ),
            Errors(
                by="delay",
                name="under 10 s",
                messages=3,
                fired=2,
                lost=1,
                doubled=0,
                early=0,
                p99=7.5,
            ),
        ],
        samples=[
            {"outcome": "lost", "topic": "t", "message_id": "A", "due_ms": 1, "fired_ms": None}
        ],
    ),
)


FINDINGS = (REPLAY, COMPARISON, FIRING)


class Reader(HTMLParser):
    """Records open tags and what would be fetched from elsewhere."""

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


def test_a_time_that_no_calendar_has_is_shown_as_the_number_that_it_is() -> None:
    due_ms = 4_000_000_000_000_000
    early = {
        "outcome": "early",
        "topic": "t",
        "message_id": "A",
        "due_ms": due_ms,
        "fired_ms": 1,
    }
    verdict = msgspec.structs.replace(FIRING[1], samples=[early])
    assert str(due_ms) in markdown("r", AT, sections([("verify", verdict)]))


def test_both_forms_say_what_was_found() -> None:
    found = sections(FINDINGS)
    assert [section.is_good for section in found] == [False, False, None]
    for text in (html("r", AT, found), markdown("r", AT, found)):
        for said in ("in recall, since 2023-11-14 22:13:20.123 UTC", "1 lost", "12,345", "7.5"):
            assert said in text
        assert "Made 2026-01-02 03:04. All times are UTC." in text
    assert "fine \\| &lt;b&gt;really&lt;/b&gt;" in markdown("r", AT, found)


def test_a_code_is_no_amount_and_noise_that_was_not_measured_is_not_none() -> None:
    found = msgspec.structs.replace(
        COMPARISON[1],
        has_noise=False,
        codes=[CodeVerdict(code=200_050, name="POP_MESSAGE", answers=1_000, verdict="differs")],
    )
    text = markdown("r", AT, sections([("compare", found)]))
    assert "| POP_MESSAGE | 200050 | differs | 1,000 |" in text
    assert "| changed | 2 | 10 |  | 2023-" in text
    assert "| changed | 2 | 10 | 0 | 2023-" in markdown("r", AT, sections([COMPARISON]))


def test_what_limits_the_findings_is_in_the_report() -> None:
    """What was left out belongs to what was found, also for those who see only the report."""
    found = [(name, msgspec.structs.replace(one, notes=[f"{name} <&>"])) for name, one in FINDINGS]
    page, text = html("r", AT, sections(found)), markdown("r", AT, sections(found))
    for name, _ in FINDINGS:
        assert f"<br>{name} &lt;&amp;&gt;</p>" in page
        assert f"\n\n{name} &lt;&amp;&gt;\n" in text


def test_titles_in_markdown_are_no_tags() -> None:
    """The title is the user's, and a section has the name of its file."""
    text = markdown("<a>", AT, sections([("<b>", FIRING[1]), ("<c>", FIRING[1])]))
    assert text.startswith("# &lt;a&gt;\n")
    assert "## Firing of delayed messages: &lt;b&gt;\n" in text


def test_outcomes_that_no_message_had_are_not_told() -> None:
    """Most of them need what few use."""
    [section] = sections([FIRING])
    told = "3 delayed messages: 2 fired, 1 lost, 0 doubled, 0 early"
    assert section.verdict.startswith(f"{told}; consumers")
    rare = msgspec.structs.replace(FIRING[1], replaced=4, not_due=1, rescheduled=2)
    [section] = sections([("verify", rare)])
    assert section.verdict.startswith(f"{told}, 4 replaced, 1 not due; 2 were judged by a new time")


def test_what_was_refused_is_told() -> None:
    [section] = sections([("verify", msgspec.structs.replace(FIRING[1], refused=2))])
    assert "; 2 more were refused when they were sent" in section.verdict


def test_how_late_messages_were_is_in_the_line_that_verify_prints() -> None:
    [section] = sections([FIRING])
    assert section.verdict.endswith("; consumers had them 1,234 ms late at P99, 2,003 ms at most")
    [group, *_] = FIRING[1].groups
    stored = msgspec.structs.replace(group, by="all", stored_p99=3.0, stored_max=9)
    [section] = sections([("verify", msgspec.structs.replace(FIRING[1], groups=[stored]))])
    assert section.verdict.endswith("; the broker stored them 3 ms late at P99, 9 ms at most")
    nobody = msgspec.structs.replace(FIRING[1], groups=[])
    assert "late" not in sections([("verify", nobody)])[0].verdict


def test_among_many_topics_those_with_something_wrong_are_shown() -> None:
    """And all that is no topic."""
    [group, *_] = FIRING[1].groups
    topics = [
        msgspec.structs.replace(group, by="topic", name=f"topic-{number}", lost=number == 1999)
        for number in range(2000)
    ]
    groups = [*topics, msgspec.structs.replace(group, by="delay", name="under 10 s")]
    [section] = sections([("verify", msgspec.structs.replace(FIRING[1], groups=groups))])
    for page in (html("t", AT, [section]), markdown("t", AT, [section])):
        assert "topic-1999" in page
        assert "1,801 more rows" in page
        assert page.index("under 10 s") < page.rindex("topic-")


def test_only_what_there_is_is_reported() -> None:
    assert sections(()) == []
    [only] = sections([REPLAY])
    assert only.title == "Replay"
    one, other = sections([REPLAY, ("again", REPLAY[1])])
    assert (one.title, other.title) == ("Replay: replay", "Replay: again")


def test_plots_are_in_both_forms() -> None:
    plot = Plot("Requests", "ms", [("SEND", 40.0), ("A_PULL", 20.0), ("none", 0.0)])
    found = [Section("Traffic", "some", None, [plot, Plot("nothing", "", [])])]
    lines = markdown("r", AT, found).splitlines()
    bars = {line.split()[0]: line.count("#") for line in lines if line.endswith(" ms")}
    assert (bars["SEND"], bars["A_PULL"], bars["none"]) == (30, 15, 1)
    assert html("r", AT, found).count("<rect") == 3
    assert "nothing" not in html("r", AT, found)


def test_what_became_of_requests_is_in_the_line_that_replay_prints() -> None:
    found = Outcome(
        outcomes={"not connected": 5, "answered": 2_000},
        unmapped={},
        pacing_p50_ms=None,
        pacing_p99_ms=None,
        rate=100.0,
    )
    assert "(2,000 answered, 5 not connected)" in sections([("", found)])[0].verdict


def test_what_is_negative_has_no_bar() -> None:
    early = [
        Section("Firing", "early", None, [Plot("Lateness", "ms", [("P50", -5.0), ("P99", -1.0)])])
    ]
    assert html("r", AT, early).count('width="0.30"') == 2
    assert [line.count("#") for line in markdown("r", AT, early).splitlines()[-3:-1]] == [1, 1]


def test_a_line_break_in_a_name_does_not_end_its_row() -> None:
    found = [Section("Topics", "", None, [Table("Names", ("topic", "sent"), [("a\r\nb\rc", 1)])])]
    assert "| a b c | 1 |" in markdown("r", AT, found).splitlines()


def test_an_absent_value_and_an_empty_one_can_be_told_apart() -> None:
    name, found = COMPARISON
    one = msgspec.structs.replace(DIFFERENCE, expected="", found=None)
    said = sections([(name, msgspec.structs.replace(found, differences=[one]))])
    assert "| differs | (empty) | (absent) |" in markdown("r", AT, said)
