"""Requests that a recorder's servers have not answered yet."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from compat.exchanges import tag
from compat.ports import free_port
from compat.questions import Questions
from compat.recorder import Recorder
from gateway.wire.codes import CommandFlag, RequestCode
from gateway.wire.commands import encode_command, encode_response
from recording.format import Kind
from recording.proxy import Route

LIMIT_S = 120
MINE, OTHER = tag(1), tag(2)
SEND, PULL = RequestCode.SEND_MESSAGE, RequestCode.PULL_MESSAGE


def asked(code: int, opaque: int, topic: str = MINE, flag: int = 0, language: str = "GO") -> bytes:
    """Return a client's request."""
    return encode_command(code, opaque, flag=flag, ext={"topic": topic}, language=language)


def is_answered(questions: Questions, limit_s: float = 0) -> bool:
    """Whether everything waited for is answered by now, or within the time."""
    return questions.wait_until_answered(MINE, limit_s, but={PULL}, not_of="OTHER")


def test_a_question_is_open_until_its_answer_on_its_connection() -> None:
    questions = Questions()
    assert is_answered(questions)
    questions.passed(1, Kind.FROM_CLIENT, asked(SEND, 7))
    questions.passed(2, Kind.FROM_CLIENT, asked(SEND, 8))
    assert not is_answered(questions)
    questions.passed(2, Kind.FROM_SERVER, encode_response(7, 0))
    questions.passed(1, Kind.FROM_SERVER, encode_response(8, 0))
    assert not is_answered(questions)
    questions.passed(1, Kind.FROM_SERVER, encode_response(7, 0))
    questions.passed(2, Kind.FROM_SERVER, encode_response(8, 1))
    assert is_answered(questions)


@pytest.mark.parametrize(
    "frame",
    [
        asked(PULL, 7),
        asked(SEND, 7, OTHER),
        asked(SEND, 7, "nobody's"),
        asked(SEND, 7, flag=CommandFlag.ONEWAY),
        asked(SEND, 7, language="OTHER"),
        encode_response(7, 0),
        b"\0\0\0\x05\0\0\0\x01{",
    ],
)
def test_what_is_not_waited_for(frame: bytes) -> None:
    questions = Questions()
    questions.passed(1, Kind.FROM_CLIENT, frame)
    questions.passed(1, Kind.FROM_SERVER, encode_command(SEND, 9, ext={"topic": MINE}))
    assert is_answered(questions)


def test_what_was_asked_before_the_scenario_was_known_counts() -> None:
    questions = Questions()
    questions.passed(1, Kind.FROM_CLIENT, asked(SEND, 7, "TBW102"))
    questions.passed(1, Kind.FROM_CLIENT, asked(PULL, 8))
    questions.passed(1, Kind.FROM_CLIENT, asked(PULL, 9, OTHER))
    assert not is_answered(questions)


def test_nothing_is_answered_on_a_connection_that_has_ended() -> None:
    questions = Questions()
    questions.passed(1, Kind.FROM_CLIENT, asked(SEND, 7))
    questions.closed(1)
    assert is_answered(questions)


def test_a_recorder_tells_of_what_passes(tmp_path: Path) -> None:
    here = ("127.0.0.1", free_port())
    question, answer = asked(SEND, 7), encode_response(7, 0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        route = Route("server", here, server.getsockname())
        with (
            Recorder(tmp_path / "capture", [route]) as recorder,
            socket.create_connection(here, LIMIT_S) as client,
        ):
            client.sendall(question)
            connection, _ = server.accept()
            with connection:
                assert connection.recv(len(question), socket.MSG_WAITALL) == question
                assert not is_answered(recorder.questions)
                found: list[bool] = []
                waiting = threading.Thread(
                    target=lambda: found.append(is_answered(recorder.questions, LIMIT_S))
                )
                waiting.start()
                connection.sendall(answer)
                waiting.join()
    assert found == [True]
