"""Which room of the program may import which: downwards only.

| room | may import of this project | and not |
|---|---|---|
| `gateway/wire/` | nothing | Twisted, LMDB: it does no I/O |
| `storage/` | nothing | Twisted |
| `recording/` | `recording`, `gateway.wire` | LMDB, Twisted |
| `gateway/` | `gateway`, `storage`, `recording` | LMDB |
| `gateway/handlers/` | `gateway`, `storage` | LMDB, and of Twisted anything but its log |
| `compat/` | `compat`, `recording`, `gateway.wire`, `gateway.client` (which imports only the wire) | LMDB |
| `spark_jobs/` | `spark_jobs`, `recording.format`, `gateway.wire`, `compat.toolchain` (it finds Java) | LMDB, Twisted |
| `tests/` | all | a file of tests: what several of them use is in a module whose name says what it is |

`EXCEPTIONS` lists the imports that break these rules on purpose, each with its reason.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
OURS = ("gateway", "storage", "recording", "compat", "spark_jobs", "tests")


class Room(NamedTuple):
    """A folder, the modules of this project that it may import, and modules that it may not import."""

    folder: str
    may: tuple[str, ...]
    may_not: tuple[str, ...]


ROOMS = (
    Room("gateway/wire", ("gateway.wire",), ("twisted", "lmdb")),
    Room("storage", ("storage",), ("twisted",)),
    Room("recording", ("recording", "gateway.wire"), ("lmdb", "twisted")),
    Room("gateway", ("gateway", "storage", "recording"), ("lmdb",)),
    Room("compat", ("compat", "recording", "gateway.wire", "gateway.client"), ("lmdb",)),
    Room(
        "spark_jobs",
        ("spark_jobs", "recording.format", "gateway.wire", "compat.toolchain"),
        ("lmdb", "twisted"),
    ),
)

EXCEPTIONS = {
    # `tidegate bench` is a command like the others. It loads the benchmark only when it is called.
    ("gateway/cli/main.py", "compat.bench.command.bench"),
    # The same holds for `tidegate compat`.
    ("gateway/cli/main.py", "compat.command.compat"),
    # The same holds for the jobs on recorded traffic, which need an extra.
    ("gateway/cli/main.py", "spark_jobs.command.main"),
    # It stores millions of messages in a data folder in the same way as the gateway.
    ("compat/bench/fill.py", "gateway.intake.terms_of"),
    ("compat/bench/fill.py", "storage.Store"),
    # Both benchmarks measure the machine in the same way.
    ("spark_jobs/bench/command.py", "compat.bench.machine.describe"),
    ("spark_jobs/bench/measuring.py", "compat.bench.processes.Usage"),
    ("spark_jobs/bench/measuring.py", "compat.bench.processes.usage"),
    ("spark_jobs/bench/command.py", "compat.children.StartError"),
    ("spark_jobs/bench/runs.py", "compat.children"),
}
"""Files, and the names that they import against the rules."""

WIRE_MAY = {"msgspec"}
"""The packages that `gateway/wire/` imports besides the standard library."""


def imports(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and full name of everything that a file imports, wherever in the file."""
    for node in ast.walk(ast.parse(file.read_text(), str(file))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: a relative import"
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"


def is_under(name: str, modules: tuple[str, ...]) -> bool:
    """Whether a name is one of these modules or something in one."""
    return any(name == module or name.startswith(module + ".") for module in modules)


def files(folder: str) -> list[Path]:
    """Return the Python files of a room."""
    return sorted((ROOT / folder).rglob("*.py"))


def show(file: Path, line: int, name: str) -> str:
    """Format one breach with file and line."""
    return f"{file.relative_to(ROOT)}:{line} imports {name}"


def breaches(room: Room) -> Iterator[tuple[Path, int, str]]:
    """Yield file, line and name of each import that breaks a room's rules, the exceptions included."""
    for file in files(room.folder):
        for line, name in imports(file):
            is_foreign = is_under(name, OURS) and not is_under(name, room.may)
            if is_foreign or is_under(name, room.may_not):
                yield file, line, name


@pytest.mark.parametrize("room", ROOMS, ids=[room.folder for room in ROOMS])
def test_imports_go_downwards(room: Room) -> None:
    assert [
        show(file, line, name)
        for file, line, name in breaches(room)
        if (str(file.relative_to(ROOT)), name) not in EXCEPTIONS
    ] == []


def test_exceptions_are_still_needed() -> None:
    made = {
        (str(file.relative_to(ROOT)), name) for room in ROOMS for file, _, name in breaches(room)
    }
    assert made >= EXCEPTIONS


def test_the_client_knows_the_wire_alone() -> None:
    """So `compat` may use the client without depending on the rest of the gateway."""
    assert {
        name
        for _, name in imports(ROOT / "gateway/client.py")
        if is_under(name, OURS) and not is_under(name, ("gateway.wire",))
    } == set()


def test_the_walk_sees_imports() -> None:
    """Without this, an empty folder or a search that finds nothing would pass."""
    seen = {name for file in files("storage") for _, name in imports(file)}
    assert "lmdb" in seen
    seen = {name for file in files("gateway/handlers") for _, name in imports(file)}
    assert any(is_under(name, ("storage",)) for name in seen)
    assert len(files("gateway/wire")) > 5


def test_wire_needs_little() -> None:
    assert [
        show(file, line, name)
        for file in files("gateway/wire")
        for line, name in imports(file)
        if name.partition(".")[0] not in sys.stdlib_module_names | WIRE_MAY | {"gateway"}
    ] == []


def test_handlers_touch_no_socket() -> None:
    allowed = ("twisted.logger",)
    assert [
        show(file, line, name)
        for file in files("gateway/handlers")
        for line, name in imports(file)
        if is_under(name, ("twisted", "gateway.connections.connection", "gateway.service"))
        and not is_under(name, allowed)
    ] == []


def test_only_the_service_knows_everyone() -> None:
    """Any other import of the composition would make a circle. The command line starts it."""
    assert {
        str(file.relative_to(ROOT))
        for file in files("gateway")
        for _, name in imports(file)
        if is_under(name, ("gateway.service",))
    } <= {"gateway/cli/main.py"}


def test_handlers_are_known_to_the_table_and_the_composition_alone() -> None:
    outside = {
        str(file.relative_to(ROOT))
        for file in files("gateway")
        if "handlers" not in file.parts
        for _, name in imports(file)
        if is_under(name, ("gateway.handlers",))
    }
    assert outside <= {"gateway/routes.py", "gateway/service.py", "gateway/housekeeping.py"}


def test_nothing_is_imported_from_a_file_of_tests() -> None:
    assert [
        show(file, line, name)
        for file in files("tests")
        for line, name in imports(file)
        if any(part.startswith("test_") for part in name.split("."))
    ] == []
