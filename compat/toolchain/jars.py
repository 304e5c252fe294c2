"""Gets the jars in `jars.lock` from the default Maven repository."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from compat.toolchain.folder import TOOLS, ToolchainError, locked, say

if TYPE_CHECKING:
    from jgo.maven import MavenContext

LOCK_FILE: Final = Path(__file__).with_name("jars.lock")

CLIENT_VERSIONS: Final = ("5.5.0", "4.9.8")
SERVER: Final = "server-5.5.0"
PROXY: Final = "proxy-5.5.0"
GRPC_CLIENT: Final = "client-grpc-5.2.0"
COMPILER: Final = "compiler"

# The source of `jars.lock`: by class path, the jars whose dependencies are resolved.
ROOTS: Final = {
    "client-5.5.0": ("org.apache.rocketmq:rocketmq-client:5.5.0",),
    "client-4.9.8": (
        "org.apache.rocketmq:rocketmq-client:4.9.8",
        # It signs requests. The later client can do that itself.
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
    PROXY: (
        "org.apache.rocketmq:rocketmq-proxy:5.5.0",
        # As above. Besides, the resolver would choose another guava than Maven does.
        "io.grpc:grpc-api:1.53.0",
        "io.grpc:grpc-core:1.53.0",
        "com.google.guava:guava:32.0.1-jre",
    ),
    GRPC_CLIENT: (
        "org.apache.rocketmq:rocketmq-client-java:5.2.0",
        "com.alibaba:fastjson:1.2.83",  # for the driver
    ),
    # The last release that runs on Java 11.
    COMPILER: ("org.eclipse.jdt:ecj:3.32.0",),
}

_DOWNLOADS_AT_ONCE: Final = 8
_DOWNLOAD_TIMEOUT_S: Final = 60


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
    """Return the jars of one class path of `jars.lock`, in class path order.

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
    """Return the files of one class path of `jars.lock`, and download those that are missing."""
    jars = locked_jars(name)
    folder = TOOLS / "jars"
    with locked("jars"):
        folder.mkdir(exist_ok=True)
        missing = [jar for jar in jars if not (folder / jar.file_name).is_file()]
        if missing:
            say(f"Getting {len(missing)} jars for {name}")
            context = _maven()
            with ThreadPoolExecutor(_DOWNLOADS_AT_ONCE) as pool:
                for _ in pool.map(lambda jar: _download(context, jar, folder), missing):
                    pass
    return [folder / jar.file_name for jar in jars]


def _maven() -> MavenContext:
    try:
        from jgo.maven import MavenContext
    except ModuleNotFoundError as error:
        raise ToolchainError(
            "the package jgo is missing: run 'make setup-clients' first"
        ) from error

    return MavenContext(repo_cache=TOOLS / "maven", timeout=_DOWNLOAD_TIMEOUT_S)


def _download(context: MavenContext, jar: Jar, folder: Path) -> None:
    """Download one jar into the folder. It gets its final name only once its checksum is right."""
    component = context.project(jar.group, jar.artifact).at_version(jar.version)
    artifact = component.artifact(classifier=jar.classifier)
    attempts = 3
    for attempt in range(1, attempts + 1):
        cached = artifact.cached_path
        assert cached is not None
        # The resolver would take the file of an interrupted download as complete.
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
    """Resolve the roots again and write `jars.lock`, with the checksums of the downloaded jars."""
    from jgo.maven import Dependency

    context = _maven()
    lines = []
    for name, roots in ROOTS.items():
        say(f"Resolving {name}")
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
