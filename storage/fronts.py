"""Where in the table `timers` firing begins, so that no step goes through keys that an earlier one has examined."""

from __future__ import annotations


class Fronts:
    """The keys before which `timers` has nothing to fire, of all topics and of single ones."""

    def __init__(self) -> None:
        self.of_all = b""
        """`timers` has nothing to fire before this key: the messages there are overdue but cannot be fired."""
        self._own: dict[bytes, bytes] = {}
        self.entered: dict[bytes, bytes] = {}
        """For each topic the first key that the open batch has put into `timers`: the counts in `held` do not include
        it yet."""

    def of(self, topic: bytes) -> bytes:
        """Return the key before which `timers` has none of a topic's messages to fire."""
        return max(self.of_all, self._own.get(topic, b""))

    def advance(self, topic: bytes, key: bytes) -> None:
        """Note that a search for a topic's messages, from its front on, has come to this key."""
        self._own[topic] = key

    def enter(self, topic: bytes, key: bytes) -> None:
        """Note that the open batch has put a timer of a topic into `timers`."""
        self.lower(topic, key)
        self.entered[topic] = min(key, self.entered.get(topic, key))

    def lower(self, topic: bytes, key: bytes) -> None:
        """Note that `timers` has a message of a topic at this key."""
        if key < self.of_all:
            self.of_all = key
        if key < self._own.get(topic, b""):
            self._own[topic] = key

    def commit(self) -> None:
        """Note that the batch is stored, and counted in `held`."""
        self.entered.clear()

    def forget_topics(self) -> None:
        """Drop the fronts of single topics, which are useful only while another topic's messages crowd them out."""
        self._own.clear()

    def reset(self) -> None:
        """Begin at the first key again, as after a batch was refused: timers that had fired may be back."""
        self.of_all = b""
        self._own.clear()
        self.entered.clear()
