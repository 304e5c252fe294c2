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

MAX_SIZE = 4 << 20
"""Most bytes of all values and their names: they are kept in memory."""

_NOTE = b"kv\0"


class KvConfig:
    """Stored values by namespace and key."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._namespaces: dict[str, dict[str, str]] = {}
        self._size = 0
        self.reload()

    def reload(self) -> None:
        """Read the stored values."""
        self._namespaces.clear()
        self._size = 0
        read_notes(self._store, _NOTE, "value of the namespace and key", self._take)

    def _take(self, name: bytes, value: bytes) -> None:
        namespace, key = name.decode().split("\0")
        self._namespaces.setdefault(namespace, {})[key] = value.decode()
        self._size += len(_NOTE) + len(name) + len(value)

    def get(self, namespace: str, key: str) -> str | None:
        """Return a value, if there is one."""
        return self._namespaces.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """Return the values of a namespace by key; None if it never had any."""
        return self._namespaces.get(namespace)

    def put(self, namespace: str, key: str, value: str) -> None:
        """Store a value. The change joins the store's batch.

        :raises RequestError: when the names are too long together, or contain a zero byte, or all values would have too
            many bytes.
        """
        place, encoded = _place(namespace, key), value.encode()
        if "\0" in namespace + key or len(place) > MAX_PLACE:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"namespace and key have at most {MAX_PLACE - len(_NOTE) - 1} bytes together, none of them 0",
            )
        more = len(place) + len(encoded) - self._size_of(namespace, key)
        if more > 0 and self._size + more > MAX_SIZE:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"all values would have more than {MAX_SIZE} bytes: delete some",
            )
        self._store.put_note(place, encoded)
        self._namespaces.setdefault(namespace, {})[key] = value
        self._size += more

    def delete(self, namespace: str, key: str) -> None:
        """Delete a value. The change joins the store's batch."""
        values = self._namespaces.get(namespace, {})
        if key in values:
            self._store.delete_note(_place(namespace, key))
            self._size -= self._size_of(namespace, key)
            del values[key]

    def _size_of(self, namespace: str, key: str) -> int:
        value = self.get(namespace, key)
        return len(_place(namespace, key)) + len(value.encode()) if value is not None else 0


def _place(namespace: str, key: str) -> bytes:
    return _NOTE + f"{namespace}\0{key}".encode()
