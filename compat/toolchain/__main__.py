"""`python -m compat.toolchain`: gets everything, or runs a program with a real client."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

from compat.toolchain.cpp import cpp_client, has_cpp_client
from compat.toolchain.folder import PROJECT, TOOLS, ToolchainError, say
from compat.toolchain.go import go_client, has_go_client
from compat.toolchain.jars import ROOTS, classpath, write_lock
from compat.toolchain.java import compile_java, java

USAGE: Final = """\
python -m compat.toolchain                     get everything
python -m compat.toolchain run-java FILE ...   run a Java program with the official client
python -m compat.toolchain run-python FILE ... run a Python program with rocketmq-client-python
python -m compat.toolchain lock                resolve the jars anew and write jars.lock"""


def prepare() -> None:
    """Get everything that this kind of machine can run."""
    say(f"Java runtime: {java()}")
    for name in ROOTS:
        classpath(name)
    if has_cpp_client():
        cpp_client()
    if has_go_client():
        go_client()


def _run_java(source: Path, arguments: Sequence[str]) -> NoReturn:
    """Replace this process by the Java program in a file, with the current official client."""
    libraries = classpath("client-5.5.0")
    classes = compile_java([source], libraries, source.stem)
    paths = os.pathsep.join(str(path) for path in (classes, *libraries))
    home = f"-Duser.home={TOOLS / 'home'}"  # the client writes its logs there
    os.execv(java(), [str(java()), home, "-cp", paths, source.stem, *arguments])


def _run_python(source: Path, arguments: Sequence[str]) -> NoReturn:
    """Replace this process by the Python program in a file, with rocketmq-client-python."""
    (TOOLS / "home").mkdir(parents=True, exist_ok=True)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(cpp_client()), str(PROJECT))),
        "ROCKETMQ_CLIENT_LOG_DIR": str(TOOLS / "home"),
    }
    os.execve(sys.executable, [sys.executable, str(source), *arguments], environment)


def main(arguments: Sequence[str]) -> int:
    """Run the command; see USAGE."""
    try:
        match arguments:
            case []:
                prepare()
            case ["lock"]:
                write_lock()
            case ["run-java", file, *rest]:
                _run_java(Path(file), rest)
            case ["run-python", file, *rest]:
                _run_python(Path(file), rest)
            case _:
                say(USAGE)
                return 2
    except (OSError, ToolchainError) as error:
        say(f"toolchain: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
