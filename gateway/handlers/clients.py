"""Clients: heartbeats (34), unregistering (35), a group's members (38), queue locks of orderly consumers (41, 42), and
checks of subscriptions (46)."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from twisted.logger import Logger

from gateway.broker import Broker
from gateway.filters import FilterError, filter_of, is_tag_type, unsupported
from gateway.queue_locks import QueueLocks
from gateway.reactor import Reactor
from gateway.router import Call, RequestError, check_number
from gateway.sql92 import MAX_LENGTH
from gateway.wire.bodies import (
    CheckRequest,
    ConsumerData,
    Heartbeat,
    LockRequest,
    encode_consumer_list,
    encode_locked,
    read_body,
)
from gateway.wire.codes import ResponseCode
from gateway.wire.group_topics import RETRY_PREFIX
from gateway.wire.headers import GetConsumerList, UnregisterClient

MAX_GROUPS = 10_000
"""Groups of all clients of one connection, which may be a proxy's."""

MAX_GROUPS_AT_ONCE = 2_000
"""Groups in one heartbeat, 16 us each where they are new: all those of one client, which has some threads for each."""

MAX_SUBSCRIPTIONS = 100_000
"""Subscriptions in one heartbeat, in all its groups, 0.5 us each, and in all groups of one connection, where those with
long expressions count as several (`weight_of`)."""

MAX_CHARACTERS = 8 * MAX_LENGTH
"""Characters of the tags and expressions of these subscriptions. Tools ask for the hash of each tag, which takes 0.3 us
a character."""

MAX_NAME = 1_000
"""Characters of a client's id, its language, and its groups and topics, which are kept while it is connected, or has
locked a queue."""

MAX_REPEATED = 8 << 20
"""Characters of a client's id and its group, once for each queue that it locks: they are stored as often."""

MAX_LOCKED = 10_000
"""Queues that one request locks or unlocks, 5 us each: as many as a topic can have."""


class ClientRequests:
    """Answers the requests by which clients announce themselves."""

    log = Logger()

    def __init__(self, broker: Broker, reactor: Reactor, locks: QueueLocks) -> None:
        self._broker = broker
        self._reactor = reactor
        self._locks = locks

    def heartbeat(self, call: Call) -> None:
        """Record the client of a heartbeat. The first heartbeat of a consumer group creates the group and its retry
        topic, if there is room; a group without room is left out."""
        heartbeat = read_body(call.command.body, Heartbeat)
        self._check_sizes(heartbeat, call)
        quiet: set[str] = set()
        known: list[ConsumerData] = []
        refused, why = 0, ""
        for data in heartbeat.consumer_data_set:
            try:
                group = self._broker.groups.find(data.group_name)
                if group is None:
                    continue  # nobody can consume as this group, so it is not online either
                known.append(data)
                if not group.notify_consumer_ids_changed_enable:
                    quiet.add(data.group_name)
                # Broadcasting consumers send nothing back, but tools find every group by the route of its retry topic.
                # Without room the group is online without it; the first message that comes back makes it.
                retry_topic = RETRY_PREFIX + data.group_name
                self._broker.topics.check_room(retry_topic)
                self._broker.topics.ensure(retry_topic, max(1, group.retry_queue_nums))
            except RequestError as error:
                refused, why = refused + 1, error.remark
        if refused:
            # The heartbeat itself succeeds, as the client's other groups need it. No client would show its program an
            # error: the pulls and pops of a group that is left out get one.
            self.log.warn(
                "a heartbeat of {client} from {peer} cannot create groups or their retry topics ({count}): {remark}",
                client=heartbeat.client_id,
                peer=call.peer.address,
                count=refused,
                remark=why,
            )
        heartbeat.consumer_data_set = known
        wanted_anew = self._broker.clients.heartbeat(
            heartbeat,
            call.peer,
            call.command.language,
            call.command.version,
            self._reactor.seconds(),
            quiet,
            call.caller,
        )
        # Those who wait for messages learn that their group wants others now.
        parked = self._broker.parked
        parked.wake(parked.awaited_of(wanted_anew))
        self._answer(
            call, call.encode({"IS_SUPPORT_HEART_BEAT_V2": "false", "IS_SUB_CHANGE": "true"})
        )

    def _check_sizes(self, heartbeat: Heartbeat, call: Call) -> None:
        """Refuse a heartbeat that would hold up all other work, or whose connection has brought too much already."""
        consumers = heartbeat.consumer_data_set
        groups = len(heartbeat.producer_data_set) + len(consumers)
        check_number("groups in one heartbeat", groups, MAX_GROUPS_AT_ONCE)
        language = call.command.language
        _check_names(
            [heartbeat.client_id, language],
            (data.group_name for data in heartbeat.producer_data_set),
            (data.group_name for data in consumers),
            (one.topic for data in consumers for one in data.subscription_data_set),
        )
        subscriptions = [one for data in consumers for one in data.subscription_data_set]
        check_number("subscriptions in one heartbeat", len(subscriptions), MAX_SUBSCRIPTIONS)
        of_all, subscribed = self._broker.clients.groups_with(heartbeat, call.peer)
        check_number("groups of one connection", of_all, MAX_GROUPS)
        what = "subscriptions of one connection (100 characters of tags count as one more)"
        check_number(what, subscribed, MAX_SUBSCRIPTIONS)
        characters = sum(len(one.sub_string) for one in subscriptions)
        check_number(
            "characters of tags and expressions in one heartbeat", characters, MAX_CHARACTERS
        )

    def unregister(self, call: Call) -> None:
        """Remove a client from its groups."""
        fields: UnregisterClient = call.fields
        group = self._broker.groups.get(fields.consumer_group or "")
        self._broker.clients.unregister(
            call.peer,
            fields.client_id,
            fields.producer_group or "",
            fields.consumer_group or "",
            quietly=group is not None and not group.notify_consumer_ids_changed_enable,
        )
        call.answer()

    def consumer_list(self, call: Call) -> None:
        """Answer with the ids of a group's members; each member computes its own share of the queues from them."""
        fields: GetConsumerList = call.fields
        group = self._broker.clients.consumer_group(fields.consumer_group)
        if group is None:
            # A consumer whose heartbeat could not create its group asks this before it pulls, and logs the answer.
            self._broker.groups.check_room(fields.consumer_group)
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {fields.consumer_group}"
            )
        call.answer(body=encode_consumer_list(list(group.members)))

    def lock(self, call: Call) -> None:
        """Lock queues for one member, and answer with the queues that it holds."""
        request = _lock_request(call)
        locked = self._locks.lock(request.consumer_group, request.client_id, request.mq_set)
        self._answer(call, call.encode(body=encode_locked(locked)))

    def unlock(self, call: Call) -> None:
        """Unlock queues of a member."""
        request = _lock_request(call)
        self._locks.unlock(request.consumer_group, request.client_id, request.mq_set)
        self._answer(call, call.encode())

    def check(self, call: Call) -> None:
        """Refuse a subscription whose filter is not valid (46)."""
        subscription = read_body(call.command.body, CheckRequest).subscription_data
        if subscription is not None and not is_tag_type(subscription.expression_type):
            if not self._broker.config.property_filter:
                raise unsupported(subscription.expression_type)
            try:
                filter_of(subscription.sub_string, subscription.expression_type)
            except FilterError as error:
                raise RequestError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from error
        call.answer()

    def _answer(self, call: Call, frame: bytes) -> None:
        """Answer once the changes of the request are on disk."""
        if self._broker.store.has_changes:
            self._broker.committer.answer(call, frame)
        else:
            call.send(frame)


def _check_names(*names: Iterable[str]) -> None:
    """Refuse a request with a long name, which would be kept."""
    longest = max(map(len, chain(*names)))
    check_number("characters of a name", longest, MAX_NAME)


def _lock_request(call: Call) -> LockRequest:
    request = read_body(call.command.body, LockRequest)
    queues = len(request.mq_set)
    check_number("queues in one request", queues, MAX_LOCKED)
    _check_names(
        [request.client_id, request.consumer_group],
        (queue.topic for queue in request.mq_set),
        (queue.broker_name for queue in request.mq_set),
    )
    names = len(request.client_id) + len(request.consumer_group)
    check_number("characters of the names with these queues", queues * names, MAX_REPEATED)
    return request
