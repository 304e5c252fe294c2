"""Values that tools leave with the name server, such as the queues of ordered topics (KVConfigManager).

They are stored and returned. Routes do not carry them, as upstream while orderMessageEnable is false, the default.
"""

from __future__ import annotations

from gateway.notes import read_notes
from gateway.router import RequestError
from gateway.wire.codes import ResponseCode
from storage import Store

MAX_PLACE = 400
"""Most bytes of a key of the store: `_NOTE`, namespace, zero byte and key."""

_NOTE = b"kv\0"


class KvConfig:
    """Stored values by namespace and key."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._namespaces: dict[str, dict[str, str]] = {}
        self.reload()

    def reload(self) -> None:
        """Read the stored values."""
        self._namespaces.clear()
        read_notes(self._store, _NOTE, "value of the namespace and key", self._take)

    def _take(self, name: bytes, value: bytes) -> None:
        namespace, key = name.decode().split("\0")
        self._namespaces.setdefault(namespace, {})[key] = value.decode()

    def get(self, namespace: str, key: str) -> str | None:
        """Return a value, if there is one."""
        return self._namespaces.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """Return the values of a namespace by key; None if it never had any."""
        return self._namespaces.get(namespace)

    def put(self, namespace: str, key: str, value: str) -> None:
        """Store a value. The change joins the store's batch.

        :raises RequestError: when the names are too long together, or contain a zero byte.
        """
        place = _place(namespace, key)
        if "\0" in namespace + key or len(place) > MAX_PLACE:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"namespace and key have at most {MAX_PLACE - len(_NOTE) - 1} bytes together, none of them 0",
            )
        self._store.put_note(place, value.encode())
        self._namespaces.setdefault(namespace, {})[key] = value

    def delete(self, namespace: str, key: str) -> None:
        """Delete a value. The change joins the store's batch."""
        values = self._namespaces.get(namespace, {})
        if key in values:
            self._store.delete_note(_place(namespace, key))
            del values[key]


def _place(namespace: str, key: str) -> bytes:
    return _NOTE + f"{namespace}\0{key}".encode()
