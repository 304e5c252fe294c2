"""The blocking client against a server with canned responses."""

from __future__ import annotations

import socket

import pytest

from gateway.client import (
    ClientError,
    RefusalError,
    RemotingClient,
    abort,
    look_up,
    tls_context,
)
from gateway.wire.commands import encode_command, encode_response
from gateway.wire.signatures import is_signed
from tests.cli.fake import MESSAGE, FakeGateway, success


def test_questions_of_a_user_are_signed() -> None:
    with (
        FakeGateway(lambda command: encode_response(command.opaque, 0)) as gateway,
        RemotingClient(*gateway.address, credentials=("alice", "secret")) as client,
    ):
        client.ask(105, {"topic": "t"}, b"body")
    [asked] = gateway.asked
    assert (asked.ext()["topic"], asked.ext()["AccessKey"]) == ("t", "alice")
    assert is_signed(asked.ext(), asked.body, asked.version, b"secret")


def test_asks_several_questions_on_one_connection() -> None:
    with (
        FakeGateway(
            lambda command: encode_response(command.opaque, 0, ext={"a": "1"}),
            lambda command: encode_response(command.opaque, 17, remark="no such topic"),
        ) as gateway,
        RemotingClient(*gateway.address) as client,
    ):
        assert client.ask(105, {"topic": "t"}).ext() == {"a": "1"}
        answer = client.ask(105, {"topic": "u"}, b"body")

    assert (answer.code, answer.remark) == (17, "no such topic")
    assert [(asked.code, asked.ext(), asked.body) for asked in gateway.asked] == [
        (105, {"topic": "t"}, b""),
        (105, {"topic": "u"}, b"body"),
    ]


def test_passes_over_requests_of_the_server_and_answers_to_others() -> None:
    with (
        FakeGateway(
            lambda command: (
                encode_command(40, command.opaque, ext={"consumerGroup": "g"})
                + encode_response(command.opaque + 1, 1)
                + encode_response(command.opaque, 0, body=b"right")
            )
        ) as gateway,
        RemotingClient(*gateway.address) as client,
    ):
        assert client.ask(25).body == b"right"


def test_a_large_answer_in_many_pieces() -> None:
    body = bytes(range(256)) * 8192
    with (
        FakeGateway(lambda command: encode_response(command.opaque, 0, body=body)) as gateway,
        RemotingClient(*gateway.address) as client,
    ):
        assert client.ask(25).body == body


def test_connects_again_after_an_error() -> None:
    with (
        FakeGateway(
            lambda command: b"\x00\x00\x00\x40half a frame"[:9],
            lambda command: encode_response(command.opaque, 0, body=b"well"),
        ) as gateway,
        RemotingClient(*gateway.address, timeout=0.2) as client,
    ):
        with pytest.raises(ClientError, match=r"did not answer in 0\.2 s"):
            client.ask(25)
        assert client.ask(25).body == b"well"


class TestFailures:
    """Each failure is one line that names the address and what to do."""

    def test_nobody_listens(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port: int = listener.getsockname()[1]
        with pytest.raises(ClientError) as caught:
            RemotingClient("127.0.0.1", port).ask(25)
        assert str(caught.value) == (
            f"nothing listens on 127.0.0.1:{port}; start the gateway with 'tidegate serve', "
            "or give its address with --server HOST:PORT"
        )

    @pytest.mark.parametrize("host", ["a..b", "a" * 70 + ".test", "\udcff"])
    def test_what_is_no_host_name(self, host: str) -> None:
        with pytest.raises(ClientError, match="cannot be reached: it is not a host name; check"):
            RemotingClient(host, 9876).ask(25)

    def test_no_such_host(self) -> None:
        with pytest.raises(ClientError, match=r"host\.invalid:9876 cannot be reached: .*; check"):
            RemotingClient("host.invalid", 9876).ask(25)

    def test_hung_up(self) -> None:
        with (
            FakeGateway(lambda command: b"") as gateway,
            pytest.raises(ClientError, match=r":\d+ closed the connection"),
        ):
            RemotingClient(*gateway.address).ask(25)

    def test_hung_up_after_an_answer(self) -> None:
        """So it is a gateway, without TLS."""
        with (
            FakeGateway(lambda command: success(command, {}), lambda command: b"") as gateway,
            RemotingClient(*gateway.address) as client,
        ):
            name = gateway.server
            client.ask(25)
            with pytest.raises(ClientError) as caught:
                client.ask(25)
        assert str(caught.value) == (
            f"{name} closed the connection: it sent no answer; it may have been stopped: see its log"
        )

    @pytest.mark.parametrize("tls", [False, True])
    def test_the_port_for_http(self, *, tls: bool) -> None:
        """The server waits for the end of a line, also within the beginning of TLS."""
        context = tls_context(None) if tls else None
        with socket.create_server(("127.0.0.1", 0)) as silent:
            client = RemotingClient("127.0.0.1", silent.getsockname()[1], 0.2, context)
            with pytest.raises(ClientError, match="listens there for clients, and not for HTTP"):
                client.ask(25)

    def test_another_protocol(self) -> None:
        with (
            FakeGateway(lambda command: b"HTTP/1.1 400 Bad Request\r\n\r\n") as gateway,
            pytest.raises(ClientError, match="sent an answer that cannot be read"),
        ):
            RemotingClient(*gateway.address).ask(25)


class TestLookUp:
    def test_asks_only_what_is_given_and_reads_the_answer(self) -> None:
        with (
            FakeGateway(
                lambda command: success(command, {"messages": [MESSAGE], "cursor": "c1"})
            ) as gateway,
            RemotingClient(*gateway.address) as client,
        ):
            page = look_up(client, topic="orders", tag=None, begin=5, state="any", limit=10)

        assert gateway.asked[0].code == 31_001
        assert gateway.asked[0].ext() == {
            "topic": "orders",
            "begin": "5",
            "state": "any",
            "limit": "10",
        }
        assert page.cursor == "c1"
        [message] = page.messages
        assert (message.msg_id, message.queue_id) == ("7F0000010A2B18B4AAC2000000000001", 3)
        assert (message.due_ms, message.body_size) == (1_896_078_600_000, 2048)
        assert message.born_host is None

    def test_a_refusal_is_told_with_its_code(self) -> None:
        with (
            FakeGateway(
                lambda command: encode_response(command.opaque, 1, remark="bad\ncursor")
            ) as gateway,
            RemotingClient(*gateway.address) as client,
            pytest.raises(RefusalError, match=r"^the server refused \(code 1\): bad cursor$"),
        ):
            look_up(client, cursor="x")

    @pytest.mark.parametrize(
        ("remark", "advice"),
        [
            ("username cannot be null.", "--access-key and --secret-key"),
            ("check signature failed.", "Check the --secret-key"),
        ],
    )
    def test_who_is_to_sign_is_told_how(self, remark: str, advice: str) -> None:
        with (
            FakeGateway(
                lambda command: encode_response(command.opaque, 16, remark=remark)
            ) as gateway,
            RemotingClient(*gateway.address) as client,
            pytest.raises(RefusalError, match=advice),
        ):
            look_up(client)

    def test_a_real_broker_does_not_know_the_question(self) -> None:
        with (
            FakeGateway(
                lambda command: encode_response(command.opaque, 3, remark="not supported")
            ) as gateway,
            RemotingClient(*gateway.address) as client,
            pytest.raises(RefusalError, match="only a Tidegate gateway answers this request"),
        ):
            look_up(client)

    def test_what_workers_share_is_a_tidegate_gateway(self) -> None:
        remark = "request type 31020 is for one broker, and this is the address that several workers share"
        with (
            FakeGateway(
                lambda command: encode_response(command.opaque, 3, remark=remark)
            ) as gateway,
            RemotingClient(*gateway.address) as client,
            pytest.raises(RefusalError, match=r"several workers share$"),
        ):
            look_up(client)

    @pytest.mark.parametrize("body", [{"messages": [{}]}, {}, [], {"messages": "none"}])
    def test_an_answer_of_another_shape(self, body: object) -> None:
        with (
            FakeGateway(lambda command: success(command, body)) as gateway,
            RemotingClient(*gateway.address) as client,
            pytest.raises(RefusalError, match="not understood"),
        ):
            look_up(client)


def test_abort_reads_each_outcome() -> None:
    results = [
        {"msgId": "A", "topic": "orders", "dueMs": 5, "outcome": "aborted"},
        {"msgId": None, "topic": "orders", "dueMs": None, "outcome": "unknown"},
    ]
    with (
        FakeGateway(lambda command: success(command, {"results": results})) as gateway,
        RemotingClient(*gateway.address) as client,
    ):
        outcomes = abort(client, id=None, topic="orders", key="order-1001", handle=None)

    assert gateway.asked[0].code == 31_002
    assert gateway.asked[0].ext() == {"topic": "orders", "key": "order-1001"}
    assert [(each.msg_id, each.outcome) for each in outcomes] == [
        ("A", "aborted"),
        (None, "unknown"),
    ]
