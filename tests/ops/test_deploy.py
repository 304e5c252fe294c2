"""The deployment files fit the program, and systemd accepts the unit."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from compat.clients.driver import until
from compat.ports import free_port
from gateway.settings.config import descriptions
from gateway.settings.loading import load
from tests.live.process import LIMIT_S, GatewayProcess

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


def unit() -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(DEPLOY / "tidegate.service")
    return parser


def test_the_unit_starts_the_gateway_with_flags_that_it_has() -> None:
    program, command, *flags = shlex.split(unit()["Service"]["ExecStart"])
    assert (program, command) == ("/opt/tidegate/bin/tidegate", "serve")
    assert {flag for flag in flags if flag.startswith("--")} <= {
        "--config",
        *(entry.flag for entry in descriptions().values()),
    }


def test_systemd_does_not_give_up() -> None:
    """By default it gives up after five starts in 10 s, and ends a start after 90 s."""
    assert unit()["Service"]["Restart"] == "on-failure"
    assert unit()["Service"]["TimeoutStartSec"] == "infinity"
    assert unit()["Unit"]["StartLimitIntervalSec"] == "0"


def test_systemd_finds_nothing_wrong(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("there is no systemd-analyze here")
    # systemd-analyze requires that the program exists.
    text = (DEPLOY / "tidegate.service").read_text()
    copy = tmp_path / "tidegate.service"
    copy.write_text(text.replace("/opt/tidegate/bin/tidegate", shutil.which("true") or ""))
    done = subprocess.run(
        [analyze, "verify", "--man=no", copy], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def instructions() -> list[tuple[str, str]]:
    """Return the Containerfile's instructions with their arguments."""
    text = (DEPLOY / "Containerfile").read_text().replace("\\\n", "")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in lines]


def test_the_image_gets_every_package() -> None:
    copied = {
        source
        for name, arguments in instructions()
        if name == "COPY" and "--from" not in arguments
        for source in arguments.split()[:-1]
    }
    assert all((ROOT / source).exists() for source in copied)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert {*packages, "pyproject.toml", project["project"]["readme"]} <= copied


def test_the_settings_of_image_and_compose_are_settings() -> None:
    pairs = re.findall(r"(TIDEGATE_\w+)=(\S+)", (DEPLOY / "Containerfile").read_text())
    image = dict(pairs)
    compose = dict(
        re.findall(
            r"^ +(TIDEGATE_\w+): (\S+)$", (DEPLOY / "compose.yaml").read_text(), re.MULTILINE
        )
    )
    assert compose["TIDEGATE_ADVERTISE"] == "${TIDEGATE_ADVERTISE:-127.0.0.1}"
    compose["TIDEGATE_ADVERTISE"] = "127.0.0.1"
    config = load({}, image | compose).config
    assert (str(config.listen), str(config.data)) == ("0.0.0.0:9876", "/data")
    assert str(config.advertised(9876)) == "127.0.0.1:9876"


@pytest.mark.parametrize("tls", ["true", ""])
def test_the_health_check_follows_the_settings(tmp_path: Path, tls: str) -> None:
    (check,) = (arguments for name, arguments in instructions() if name == "HEALTHCHECK")
    program, *arguments = json.loads(check.partition(" CMD ")[2])
    assert program == "python"
    settings = {"TIDEGATE_HTTP": f"127.0.0.1:{free_port()}", "TIDEGATE_HTTP_TLS": tls}

    def is_well() -> bool:
        done = subprocess.run(
            [sys.executable, *arguments],
            env=os.environ | settings,
            stderr=subprocess.DEVNULL,
            timeout=LIMIT_S,
            check=False,
        )
        return done.returncode == 0

    assert not is_well()
    with GatewayProcess(tmp_path / "data", environment=settings):
        until(is_well, "the health check to be content")


def test_nobody_is_root_in_the_image() -> None:
    last = [arguments for name, arguments in instructions() if name == "USER"][-1]
    assert last not in ("root", "0")
    names = [name for name, _ in instructions()]
    assert names.index("USER") < names.index("ENTRYPOINT")
    assert "HEALTHCHECK" in names
