"""Who sent a request: its signature, and the responses to wrong ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.process import StartError
from gateway.wire.codes import RequestCode, ResponseCode
from gateway.wire.signatures import is_signed, sign
from gateway.workers.siblings import WORKERS
from gateway.workers.vouching import vouched
from tests.gateway.access.signed import ROOT, ROOT_KEY, SignedClient, create_user
from tests.gateway.conftest import MakeGateway
from tests.gateway.memory import MemoryClient, MemoryGateway
from tests.gateway.tools import ok

JAVA_FIELDS = {
    "a": "producers",
    "b": "orders",
    "i": "KEYS\x01k\u00e4y\x02WAIT\x01true\x02",
    "_UNIQUE_KEY_QUERY": "true",
    "Zoo": "z",
    "AccessKey": "alice",
}


@pytest.mark.parametrize(
    ("more", "body", "key", "signature"),
    [
        ({}, b"", "secret1234", "ldKAhcHX6puxox8oA3Sp38MfT+Q="),
        ({}, b"hello", "secret1234", "Gth4hRtY2ELfHbxTXYHEG1PtMB8="),
        (
            {"SecurityToken": "token"},
            b"hello",
            "s\u00e9cret12",
            "zjhJ9fU6bEVP23Si165jYN+UKsU=",
        ),
    ],
)
def test_the_java_client_signs_alike(
    more: dict[str, str], body: bytes, key: str, signature: str
) -> None:
    """The expected signatures are those of AclClientRPCHook 5.5.0."""
    fields = JAVA_FIELDS | more
    assert sign(fields, body, key.encode()) == signature
    assert is_signed(fields | {"Signature": signature}, body, 513, key.encode())


def test_old_clients_add_a_field_after_they_have_signed() -> None:
    signed = {"topic": "T", "AccessKey": "alice"}
    signed["Signature"] = sign(signed, b"", b"k")
    sent = signed | {"_UNIQUE_KEY_QUERY": "true"}
    assert is_signed(sent, b"", 399, b"k")
    assert not is_signed(sent, b"", 400, b"k")


def test_the_go_client_adds_its_token_after_it_has_signed() -> None:
    signed = {"topic": "T", "AccessKey": "alice"}
    signed["Signature"] = sign(signed, b"", b"k")
    assert is_signed(signed | {"SecurityToken": "t"}, b"", 317, b"k")


@given(
    st.dictionaries(st.text("abcXYZ", min_size=1), st.text(), max_size=5),
    st.binary(max_size=20),
    st.binary(min_size=1, max_size=3),
)
def test_only_what_was_signed_passes(ext: dict[str, str], body: bytes, more: bytes) -> None:
    signed = ext | {"AccessKey": "alice"}
    signed["Signature"] = sign(signed, body, b"k")
    assert is_signed(signed, body, 513, b"k")
    assert not is_signed(signed, body + more, 513, b"k")
    assert not is_signed(signed | {"AccessKey": "bob"}, body, 513, b"k")
    assert not is_signed(signed, body, 513, b"another key")
    assert not is_signed(signed | {"Signature": "\u00e4"}, body, 513, b"k")


def test_what_is_answered_to_strangers(guarded: MemoryGateway, root: SignedClient) -> None:
    def remark(client: MemoryClient, ext: dict[str, str] | None = None) -> str | None:
        answer = client.ask(26, ext)
        assert answer.code == ResponseCode.NO_PERMISSION
        return answer.remark

    nobody = guarded.connect()
    assert remark(nobody) == "username cannot be null."
    # The C++ client sends these without credentials.
    empty = {"AccessKey": "", "Signature": "", "OnsChannel": ""}
    assert remark(nobody, empty) == "username cannot be null."
    for name in ("eve", WORKERS):  # as workers of one gateway name themselves; this is none of them
        assert remark(SignedClient(guarded, name, "x")) == f"User:{name} is not found."
    assert remark(SignedClient(guarded, ROOT, "guessed")) == "check signature failed."
    assert remark(nobody, {"AccessKey": ROOT}) == "check signature failed."
    ok(create_user(root, "carol", userStatus="disable"))
    assert remark(SignedClient(guarded, "carol", "secret")) == "User:carol is disabled."
    ok(root.ask(26))


def test_a_request_of_nobody_does_nothing_and_oneway_says_nothing(
    guarded: MemoryGateway, root: SignedClient
) -> None:
    nobody = guarded.connect()
    assert nobody.send_message().code == ResponseCode.NO_PERMISSION
    fields = nobody.send_fields()
    assert nobody.answer(nobody.send(310, fields, b"hello", oneway=True)) is None
    assert root.pull("orders") == []
    ok(root.send_message())
    assert len(root.pull_all("orders", 0)) == 1


def test_fields_in_any_form_are_signed_as_text(guarded: MemoryGateway) -> None:
    """The C++ client writes some fields as numbers and signs them as text."""
    ext = {"topic": "TBW102", "queueId": "3", "AccessKey": ROOT, "OnsChannel": "ALIYUN"}
    ext["Signature"] = sign(ext, b"", ROOT_KEY.encode())
    header = {"code": 30, "opaque": 1, "flag": 0, "language": "CPP", "version": 333}
    text = json.dumps(header | {"extFields": ext | {"queueId": 3}}).encode() + b"\n"
    client = guarded.connect()
    client.raw((4 + len(text)).to_bytes(4) + len(text).to_bytes(4) + text)
    answer = client.answer(1)
    assert answer is not None
    assert answer.code == ResponseCode.SUCCESS


def test_what_a_leader_adds_is_not_signed(guarded: MemoryGateway) -> None:
    """A request that a leader passed on may have been recorded, and is sent to another gateway."""
    ext = {"AccessKey": ROOT}
    ext["Signature"] = sign(ext, b"", ROOT_KEY.encode())
    client = guarded.connect()
    ok(client.ask(26, ext | vouched("192.0.2.7", b"the key of other workers")))


def test_without_authentication_credentials_are_passed_over(gateway: MemoryGateway) -> None:
    client = gateway.connect()
    ok(client.ask(26, {"AccessKey": "", "Signature": "", "OnsChannel": ""}))
    ok(SignedClient(gateway, "anybody", "x").send_message())


def test_the_initial_user_stays_as_changed(guarded: MemoryGateway, root: SignedClient) -> None:
    ok(root.ask(3002, {"username": ROOT}, b'{"password":"new key"}'))
    guarded.restart()
    ok(SignedClient(guarded, ROOT, "new key").ask(26))
    assert SignedClient(guarded, ROOT, ROOT_KEY).ask(26).code == ResponseCode.NO_PERMISSION


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "there is no user"),
        ("", "names no user"),
        ('{"username": "root"}', "names no user"),
        ('{"username": " ", "password": "p"}', "names no user"),
        ('{"username": "%s", "password": "p"}' % ("x" * 401), "at most 400 bytes"),
        ('{"username": "ops:root", "password": "p"}', "a colon ends the name"),
    ],
)
def test_starts_that_would_lock_everybody_out(
    make_gateway: MakeGateway, tmp_path: Path, text: str | None, says: str
) -> None:
    file = tmp_path / "user.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(StartError, match=says):
        make_gateway(authentication=True, initial_user_file=file if text is not None else None)


def test_a_user_as_an_editor_of_windows_saves_one(
    make_gateway: MakeGateway, tmp_path: Path
) -> None:
    file = tmp_path / "user.json"
    file.write_text('{"username": "root", "password": "p"}\r\n', "utf-8-sig")
    gateway = make_gateway(authentication=True, initial_user_file=file)
    client = SignedClient(gateway, "root", "p")
    assert client.ask(RequestCode.GET_BROKER_CONFIG).code == ResponseCode.SUCCESS


def test_a_missing_file_is_told(make_gateway: MakeGateway, tmp_path: Path) -> None:
    with pytest.raises(StartError, match="check the path"):
        make_gateway(authentication=True, initial_user_file=tmp_path / "none.json")
