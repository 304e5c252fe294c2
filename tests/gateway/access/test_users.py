"""Users and policies as tools manage them: 3001 to 3010."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest

from gateway.access import users
from gateway.access.policies import Action, parse_actions
from gateway.wire.codes import ResponseCode
from tests.gateway.access.signed import ROOT, ROOT_KEY, Login, SignedClient, create_user, put_acl
from tests.gateway.faults import batches_cannot_begin, commits_fail, damaged_row
from tests.gateway.memory import MemoryClient, MemoryGateway
from tests.gateway.tools import create_topic, ok, read


def test_users_are_kept_and_shown(guarded: MemoryGateway, root: SignedClient) -> None:
    assert ok(root.ask(3004, {"username": "alice"})).body == b""
    ok(create_user(root, "alice", userType="normal"))
    alice = {
        "password": "secret",
        "userStatus": "enable",
        "userType": "Normal",
        "username": "alice",
    }
    guarded.restart()
    root = SignedClient(guarded, ROOT, ROOT_KEY)
    assert read(root.ask(3004, {"username": "alice"})) == alice
    assert [one["username"] for one in read(root.ask(3005))] == ["alice", ROOT]
    assert read(root.ask(3005, {"filter": "lic"})) == [alice]
    assert ok(root.ask(3005, {"filter": "nobody"})).body == b""
    ok(root.ask(3002, {"username": "alice"}, b'{"userStatus":"DISABLE","userType":"bad"}'))
    assert read(root.ask(3004, {"username": "alice"})) == alice | {"userStatus": "disable"}
    ok(root.ask(3002, {"username": "alice"}, b'{"userStatus":"Enable","password":" "}'))
    assert read(root.ask(3004, {"username": "alice"})) == alice
    ok(root.ask(3003, {"username": "alice"}))
    ok(root.ask(3003, {"username": "alice"}))
    assert ok(root.ask(3004, {"username": "alice"})).body == b""


def test_policies_are_kept_and_shown(guarded: MemoryGateway, root: SignedClient) -> None:
    ok(create_user(root, "alice"))
    assert ok(root.ask(3009, {"subject": "User:alice"})).body == b""
    ok(put_acl(root, "alice", "Topic:T*", ["PUB", "sub", "nonsense"], ips=["192.0.2.0/24"]))
    ok(put_acl(root, "alice", "Group:G", ["Sub"], code=3007))
    ok(put_acl(root, "alice", "Group:G", ["Get"], "deny", code=3007))
    entries = [
        {
            "actions": ["Pub", "Sub"],
            "decision": "Allow",
            "resource": "Topic:T*",
            "sourceIps": ["192.0.2.0/24"],
        },
        {"actions": ["Get"], "decision": "Deny", "resource": "Group:G"},
    ]
    acl = {
        "subject": "User:alice",
        "policies": [{"policyType": "Custom", "entries": entries}],
    }
    guarded.restart()
    root = SignedClient(guarded, ROOT, ROOT_KEY)
    assert read(root.ask(3009, {"subject": "User:alice"})) == acl
    assert read(root.ask(3010)) == [acl]
    assert read(root.ask(3010, {"subjectFilter": "lic", "resourceFilter": "Topic:"})) == [
        acl | {"policies": [{"policyType": "Custom", "entries": entries[:1]}]}
    ]
    assert ok(root.ask(3010, {"subjectFilter": "bob"})).body == b""
    assert ok(root.ask(3010, {"resourceFilter": "Cluster:"})).body == b""
    refused = root.ask(3008, {"subject": "User:alice", "resource": "T*"})
    assert (refused.code, refused.remark) == (ResponseCode.NO_PERMISSION, "The resource is null.")
    ok(root.ask(3008, {"subject": "User:alice", "resource": "Topic:T*"}))
    assert read(root.ask(3010))[0]["policies"][0]["entries"] == entries[1:]
    ok(root.ask(3008, {"subject": "User:alice", "resource": "Group:G"}))
    assert ok(root.ask(3010)).body == b""


def test_the_actions_of_an_entry_are_read_once(
    root: SignedClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were read for each action that there is: 4,000 entries held up all other requests for 0.3 s."""
    asked = []

    def noted(texts: Iterable[str]) -> frozenset[Action]:
        asked.append(texts)
        return parse_actions(texts)

    monkeypatch.setattr(users, "parse_actions", noted)
    ok(create_user(root, "alice"))
    ok(put_acl(root, "alice", "Topic:T", ["Pub", "Sub"]))
    assert len(asked) == 1


def test_entries_about_the_same_resource(root: SignedClient, login: Login) -> None:
    """All entries of one request are kept, and a denial among them counts. They replace older ones about the resource.

    Once only the last of them was kept, so what another had denied was permitted.
    """
    client = login()
    create_topic(root, "T")
    denied = {"actions": ["Get"], "decision": "Deny", "resource": "Topic:T"}
    allowed = {"actions": ["Pub", "Get"], "decision": "Allow", "resource": "Topic:T"}
    for entries in ([denied, allowed], [allowed, denied]):
        policies = [{"policyType": "Custom", "entries": entries}]
        acl = {"subject": "User:alice", "policies": policies}
        ok(root.ask(3006, {"subject": "User:alice"}, json.dumps(acl).encode()))
        assert read(root.ask(3009, {"subject": "User:alice"})) == acl
        assert client.ask(351, {"topic": "T"}).code == ResponseCode.NO_PERMISSION
    ok(put_acl(root, "alice", "Topic:T", ["Get"]))
    assert ok(client.ask(351, {"topic": "T"})).body
    ok(root.ask(3006, {"subject": "User:alice"}, json.dumps(acl).encode()))
    ok(root.ask(3008, {"subject": "User:alice", "resource": "Topic:T"}))
    assert ok(root.ask(3009, {"subject": "User:alice"})).body == b""


def test_policies_go_with_their_user(root: SignedClient) -> None:
    ok(create_user(root, "alice"))
    ok(put_acl(root, "alice", "Topic:T", ["Pub"]))
    ok(root.ask(3003, {"username": "alice"}))
    ok(create_user(root, "alice"))
    assert ok(root.ask(3009, {"subject": "User:alice"})).body == b""


def test_what_was_refused_for_want_of_room_does_not_count(root: SignedClient) -> None:
    """Such a change once counted until the next start: despite the error, a permission was given or revoked."""
    ok(create_user(root, "alice"))
    ok(put_acl(root, "alice", "Topic:T", ["Pub"]))
    before = read(root.ask(3010))
    with batches_cannot_begin():
        for answer in (
            put_acl(root, "alice", "Topic:*", ["Sub"]),
            root.ask(3008, {"subject": "User:alice", "resource": "Topic:T"}),
            root.ask(3008, {"subject": "User:alice"}),
            root.ask(3003, {"username": "alice"}),
        ):
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert read(root.ask(3010)) == before
    assert read(root.ask(3004, {"username": "alice"}))["username"] == "alice"


def test_after_a_refused_batch_all_are_what_they_were_and_only_those_of_the_batch_are_read_again(
    guarded: MemoryGateway, root: SignedClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("alice", "alice2", "bob", "carol", "dave"):
        ok(create_user(root, name))
        ok(put_acl(root, name, "Topic:T", ["Pub"]))
    ok(root.ask(3008, {"subject": "User:carol"}))
    ok(create_user(root, "frank"))
    before = read(root.ask(3005)), read(root.ask(3010))
    with monkeypatch.context() as patched, commits_fail(guarded):
        patched.delattr("gateway.access.users.read_notes")
        answers = [
            create_user(root, "eve"),
            root.ask(3002, {"username": "alice"}, b'{"password":"other","userType":"Super"}'),
            root.ask(3002, {"username": "bob"}, b'{"userStatus":"disable"}'),
            root.ask(3003, {"username": "alice2"}),
            root.ask(3003, {"username": "frank"}),
            put_acl(root, "alice", "Topic:*", ["Sub"]),
            put_acl(root, "carol", "Topic:*", ["Sub"]),
            root.ask(3008, {"subject": "User:bob"}),
            put_acl(root, "dave", "Topic:T", ["Pub"], "deny", code=3007),
        ]
        refused = SignedClient(guarded, "alice", "secret").send_message("T")
    assert {one.code for one in answers} == {ResponseCode.SERVICE_NOT_AVAILABLE}
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert (read(root.ask(3005)), read(root.ask(3010))) == before
    for name, code in (
        ("alice", ResponseCode.SUCCESS),
        ("alice2", ResponseCode.SUCCESS),
        ("bob", ResponseCode.SUCCESS),
        ("carol", ResponseCode.NO_PERMISSION),
        ("dave", ResponseCode.SUCCESS),
        ("eve", ResponseCode.NO_PERMISSION),
    ):
        assert SignedClient(guarded, name, "secret").send_message("T").code == code, name


@pytest.mark.parametrize(
    ("code", "ext", "body", "remark"),
    [
        (3001, {"username": "bob"}, {}, "password can not be blank"),
        (3001, {"username": "bob"}, {"password": " "}, "password can not be blank"),
        (3001, {"username": "b\0b"}, {"password": "p"}, "username has at most 400 bytes"),
        (3001, {"username": " "}, {"password": "p"}, "username can not be blank"),
        (3001, {"username": "x" * 401}, {"password": "p"}, "username has at most 400 bytes"),
        (3001, {"username": "bob"}, {"password": "p" * 1_001}, "password has at most 1000 bytes"),
        (3002, {"username": "alice"}, {"password": "p" * 1_001}, "password has at most 1000 bytes"),
        (3001, {"username": "alice"}, {"password": "p"}, "The user is existed"),
        (3002, {"username": "bob"}, {"password": "p"}, "The user is not exist"),
        (3003, {}, None, "username can not be blank"),
        (3003, {"username": " "}, None, "username can not be blank"),
        (3008, {"subject": "User:alice"}, None, "The acl is not exist."),
        (3008, {"subject": "User:bob"}, None, "The subject is not exist."),
        (3008, {"subject": "alice"}, None, "The subject is null."),
        (3009, {"subject": "User:bob"}, None, "The subject is not exist."),
    ],
)
def test_refusals(
    root: SignedClient, code: int, ext: dict[str, str], body: object, remark: str
) -> None:
    ok(create_user(root, "alice"))
    answer = root.ask(code, ext, b"" if body is None else json.dumps(body).encode())
    assert answer.code == ResponseCode.NO_PERMISSION
    assert (answer.remark or "").startswith(remark)


def test_the_longest_name_and_password(guarded: MemoryGateway, root: SignedClient) -> None:
    name, password = "ä" * 200, "ö" * 500
    ok(create_user(root, name, password=password))
    ok(put_acl(root, name, "Topic:T", ["Pub"]))
    guarded.restart()
    ok(SignedClient(guarded, name, password).send_message("T"))


@pytest.mark.parametrize(
    ("resource", "actions", "decision", "ips", "remark"),
    [
        ("", ["Pub"], "Allow", [], "The resource is null."),
        ("Topic", ["Pub"], "Allow", [], "The resource is null."),
        ("Topic:", ["Pub"], "Allow", [], "The resource is null."),
        ("Planet:x", ["Pub"], "Allow", [], "The resource is null."),
        ("Topic:T", [], "Allow", [], "The actions is empty."),
        ("Topic:T", ["Dance"], "Allow", [], "The actions is empty."),
        ("Topic:T", ["Any"], "Allow", [], "The actions can not be Any."),
        ("Topic:T", ["Pub"], "Perhaps", [], "The decision is null or illegal."),
        ("Topic:T", ["Pub"], None, [], "The decision is null or illegal."),
        ("Topic:T", ["Pub"], "Allow", [" "], "The source ip is empty."),
        ("Topic:T", ["Pub"], "Allow", ["here"], "The source ip is invalid."),
    ],
)
def test_policies_that_are_none(
    root: SignedClient,
    resource: str,
    actions: list[str],
    decision: str | None,
    ips: list[str],
    remark: str,
) -> None:
    ok(create_user(root, "alice"))
    answer = put_acl(root, "alice", resource, actions, decision, ips=ips)
    assert (answer.code, answer.remark) == (ResponseCode.NO_PERMISSION, remark)
    assert ok(root.ask(3009, {"subject": "User:alice"})).body == b""


def test_policies_without_entries(root: SignedClient) -> None:
    """A tool may send the user's policies of both types when there are entries of one only."""
    ok(create_user(root, "alice"))
    entry = {"actions": ["Pub"], "decision": "Allow", "resource": "Topic:T"}
    policy = {"policyType": "Default", "entries": [entry]}
    empty = {"policyType": "Custom", "entries": []}
    subject = {"subject": "User:alice"}
    refused = root.ask(3006, subject, json.dumps({**subject, "policies": [empty]}).encode())
    assert (refused.code, refused.remark) == (
        ResponseCode.NO_PERMISSION,
        "The policies is empty.",
    )
    assert ok(root.ask(3009, subject)).body == b""
    both = {**subject, "policies": [policy, empty]}
    ok(root.ask(3006, subject, json.dumps(both).encode()))
    assert read(root.ask(3009, subject)) == {**subject, "policies": [policy]}


def test_policies_are_of_a_bounded_size(
    root: SignedClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """100,000 entries, which fit into one request, held up all clients for 3 s."""
    ok(create_user(root, "alice"))
    monkeypatch.setattr(users, "MAX_POLICIES", 300)
    ok(put_acl(root, "alice", "Topic:a", ["Pub"]))
    ok(put_acl(root, "alice", "Topic:b", ["Pub"]))
    before = read(root.ask(3009, {"subject": "User:alice"}))
    for length in (100, 300):
        refused = put_acl(root, "alice", "Topic:" + "c" * length, ["Pub"])
        assert refused.code == ResponseCode.NO_PERMISSION
        assert "a user can have 300" in (refused.remark or "")
    assert read(root.ask(3009, {"subject": "User:alice"})) == before
    ok(root.ask(3008, {"subject": "User:alice", "resource": "Topic:a"}))


def test_policies_of_all_users_together_are_of_a_bounded_size(
    guarded: MemoryGateway, root: SignedClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10,000 users with 256 KiB each took 2.5 GB on disk, and 5 to 25 times as much in memory."""
    for name in ("alice", "bob"):
        ok(create_user(root, name))
        ok(put_acl(root, name, "Topic:" + "a" * 100, ["Pub"]))
    one = len(root.ask(3009, {"subject": "User:bob"}).body)
    monkeypatch.setattr(users, "MAX_ALL_POLICIES", 2 * one)
    guarded.restart()
    root = SignedClient(guarded, ROOT, ROOT_KEY)
    refused = put_acl(root, "bob", "Topic:b", ["Pub"])
    assert refused.code == ResponseCode.NO_PERMISSION
    assert (refused.remark or "").endswith(f" bytes; {2 * one} are possible")
    assert root.ask(3009, {"subject": "User:bob"}).body.count(b"Topic:") == 1
    # What gets no longer is not refused, even above the limit.
    monkeypatch.setattr(users, "MAX_ALL_POLICIES", one)
    ok(put_acl(root, "bob", "Topic:" + "a" * 100, ["Sub"]))
    ok(root.ask(3008, {"subject": "User:alice"}))
    monkeypatch.setattr(users, "MAX_ALL_POLICIES", 2 * one)
    ok(put_acl(root, "bob", "Topic:b", ["Pub"]))


def test_users_are_of_a_bounded_number(root: SignedClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users, "MAX_USERS", 2)
    ok(create_user(root, "alice"))
    refused = create_user(root, "bob")
    assert refused.code == ResponseCode.NO_PERMISSION
    assert refused.remark == "there are 2 users; 2 are possible"
    ok(root.ask(3002, {"username": "alice"}, b'{"userStatus":"disable"}'))
    ok(root.ask(3003, {"username": "alice"}))
    ok(create_user(root, "bob"))


def test_the_first_user_is_always_created(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gateway would not start without the user that its settings name."""
    monkeypatch.setattr(users, "MAX_USERS", 0)
    root = SignedClient(request.getfixturevalue("guarded"), ROOT, ROOT_KEY)
    assert [one["username"] for one in read(root.ask(3005))] == [ROOT]


def test_policies_of_nobody_and_of_nothing(root: SignedClient) -> None:
    answer = put_acl(root, "bob", "Topic:T", ["Pub"])
    assert answer.remark == "The subject of User:bob is not exist."
    for body in (b"", b'{"subject":"User:bob"}'):
        empty = root.ask(3006, {"subject": "User:bob"}, body)
        assert (empty.code, empty.remark) == (
            ResponseCode.SYSTEM_ERROR,
            "The body of acl is null",
        )
    blank = root.ask(3001, None, b"{}")
    assert (blank.code, blank.remark) == (ResponseCode.INVALID_PARAMETER, "The username is blank")
    assert root.ask(3001, {"username": "x"}, b"?").code == ResponseCode.SYSTEM_ERROR


def test_only_super_users_make_and_change_super_users(login: Login, root: SignedClient) -> None:
    client = login(("Cluster:*", "All"))
    made = create_user(client, "mallory", userType="SUPER")
    assert made.code == ResponseCode.SYSTEM_ERROR
    assert made.remark == "The super user can only be create by super user"
    risen = client.ask(3002, {"username": "alice"}, b'{"userType":"Super"}')
    assert risen.remark == "The super user can only be update by super user"
    for code, body in ((3002, b'{"password":"mine now"}'), (3003, b"")):
        answer = client.ask(code, {"username": ROOT}, body)
        assert answer.code == ResponseCode.NO_PERMISSION
        assert answer.remark == "The super user can only be update by super user"
    assert put_acl(client, ROOT, "*", ["All"]).remark == answer.remark
    ok(create_user(client, "bob"))
    ok(root.ask(3002, {"username": "bob"}, b'{"userType":"Super"}'))
    ok(create_user(root, "second", userType="Super"))
    ok(SignedClient(client._gateway, "second", "secret").ask(25, None, b""))


def test_keys_are_shown_to_super_users_only(
    login: Login, root: SignedClient, client: MemoryClient
) -> None:
    reader = login(("Cluster:*", "Get"))
    assert "password" not in read(reader.ask(3004, {"username": ROOT}))
    assert all("password" not in one for one in read(reader.ask(3005)))
    assert all("password" in one for one in read(root.ask(3005)))
    ok(create_user(client, "early"))  # created before the gateway requires users
    assert "password" not in read(client.ask(3004, {"username": "early"}))


def test_a_key_changes_at_once(login: Login, root: SignedClient) -> None:
    client = login(("Topic:T", "Get"))
    ok(root.ask(3002, {"username": "alice"}, b'{"password":"other"}'))
    assert client.ask(351, {"topic": "T"}).remark == "check signature failed."


@pytest.mark.parametrize("note", [b"user\0alice", b"acl\0alice"])
def test_by_a_row_that_cannot_be_read_nobody_may_do_anything(
    guarded: MemoryGateway, root: SignedClient, login: Login, note: bytes
) -> None:
    """A start once ended with a traceback."""
    login(("Topic:*", "Pub"))
    with damaged_row(guarded, "meta", b"note " + note, lambda _: b"{"):
        alice = SignedClient(guarded, "alice", "secret")
        assert alice.send_message().code == ResponseCode.NO_PERMISSION
        assert SignedClient(guarded, ROOT, ROOT_KEY).send_message().code == ResponseCode.SUCCESS
    assert SignedClient(guarded, "alice", "secret").send_message().code == ResponseCode.SUCCESS
