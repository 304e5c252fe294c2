"""Recall handles."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.recall import RecallHandle, RecallHandleError
from tests.wire.strategies import INT64

WORDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=" "), min_size=1)
IDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


def encoded(text: str) -> str:
    """Return the text in Base64 with the URL alphabet, padded."""
    return base64.urlsafe_b64encode(text.encode()).decode()


def test_handle_from_the_protocol() -> None:
    text = encoded("v1 TJ broker-a 1795251742001 FD000000000000000000000000000002")
    handle = RecallHandle("TJ", "broker-a", 1795251742001, "FD000000000000000000000000000002")
    assert RecallHandle.parse(text) == handle
    assert handle.encode() == text
    assert RecallHandle("T", "b", 1, "i").encode() == "djEgVCBiIDEgaQ=="


@given(WORDS, WORDS, INT64, IDS)
def test_handles_come_back(topic: str, broker: str, due_ms: int, message_id: str) -> None:
    handle = RecallHandle(topic, broker, due_ms, message_id)
    assert RecallHandle.parse(handle.encode()) == handle
    for padding in ("", "=", "=="):
        assert RecallHandle.parse(handle.encode().rstrip("=") + padding) == handle


def test_an_id_may_have_blanks() -> None:
    handle = RecallHandle("T", "b", 5, "an id of my own ")
    assert RecallHandle.parse(handle.encode()) == handle


@pytest.mark.parametrize(
    "text",
    [
        "",
        "=",
        "not a handle",
        "djE",
        "djEgVCBiIDEgaQ==x",
        encoded("v2 T b 5 id"),
        encoded("v1 T b 5"),
        base64.b64encode(b"v1 \xc3\xbe\xc3\xbf b 5 id\xff\xff").decode(),
        "djEgVCBiIDEg\n",
        "ä" * 8,
    ],
)
def test_no_handle(text: str) -> None:
    with pytest.raises(RecallHandleError, match="handle is invalid"):
        RecallHandle.parse(text)


@pytest.mark.parametrize("due", ["", "x", "1.5", "٣", "9" * 20])
def test_no_time(due: str) -> None:
    with pytest.raises(RecallHandleError, match="timestamp invalid"):
        RecallHandle.parse(encoded(f"v1 T b {due} id"))


@given(st.text() | st.binary().map(lambda data: base64.urlsafe_b64encode(data).decode()))
def test_any_text_is_a_handle_or_refused(text: str) -> None:
    try:
        handle = RecallHandle.parse(text)
    except RecallHandleError:
        return
    assert isinstance(handle.due_ms, int)
