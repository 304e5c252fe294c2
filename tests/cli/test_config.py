"""The settings: which of several values counts, what is refused with which text, and the sample."""

from __future__ import annotations

import pwd
import tomllib
from datetime import timedelta
from itertools import groupby
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gateway.settings.config import Config, descriptions, toml_sample
from gateway.settings.later import DEFAULT_DELAY_LEVELS
from gateway.settings.loading import ConfigError, load
from gateway.settings.values import (
    HostPort,
    parse_delay_levels,
    parse_duration,
    parse_host_port,
    parse_size,
    show_duration,
    show_size,
)


def write(folder: Path, text: str) -> Path:
    file = folder / "tidegate.toml"
    file.write_text(text, "utf-8")
    return file


def refusal(
    file: Path | None = None,
    *,
    environ: dict[str, str] | None = None,
    flags: dict[str, str] | None = None,
) -> str:
    with pytest.raises(ConfigError) as caught:
        load(flags or {}, environ or {}, file)
    line = str(caught.value)
    assert "\n" not in line
    return line


def test_each_group_is_one() -> None:
    """Listings and samples have one heading for each group."""
    groups = [entry.about.group for entry in descriptions().values()]
    assert [group for group, _ in groupby(groups)] == list(dict.fromkeys(groups))


class TestPrecedence:
    def test_each_layer_wins_over_those_below(self, tmp_path: Path) -> None:
        file = write(
            tmp_path,
            'broker_name = "file"\ncluster_name = "file"\nmax_pull_messages = 5\n',
        )
        environ = {"TIDEGATE_CLUSTER_NAME": "environment", "TIDEGATE_MAX_PULL_MESSAGES": "6"}
        loaded = load({"max_pull_messages": "7", "flush": None}, environ, file)

        assert loaded.config.broker_name == "file"
        assert loaded.config.cluster_name == "environment"
        assert loaded.config.max_pull_messages == 7
        assert loaded.config.flush == "sync"
        assert loaded.origins == {
            "broker_name": f"{file}, line 1",
            "cluster_name": "TIDEGATE_CLUSTER_NAME",
            "max_pull_messages": "--max-pull-messages",
        }

    def test_a_setting_overruled_is_not_judged(self, tmp_path: Path) -> None:
        file = write(tmp_path, 'flush = "never"\n')
        assert load({"flush": "async"}, {}, file).config.flush == "async"

    def test_the_file_may_be_named_by_the_environment(self, tmp_path: Path) -> None:
        named = write(tmp_path, "max_connections = 17\n")
        assert load({}, {"TIDEGATE_CONFIG": str(named)}).config.max_connections == 17

    def test_an_empty_variable_is_not_given(self) -> None:
        assert load({}, {"TIDEGATE_FLUSH": ""}).origins == {}

    def test_dashes_in_file_keys_are_underscores(self, tmp_path: Path) -> None:
        loaded = load({}, {}, write(tmp_path, "vip-channel = false\n"))
        assert loaded.config.vip_channel is False

    def test_variables_that_container_platforms_set_are_passed_over(self) -> None:
        environ = {
            "TIDEGATE_SERVICE_HOST": "10.0.0.1",
            "TIDEGATE_SERVICE_PORT": "9876",
            "TIDEGATE_SERVICE_PORT_REMOTING": "9876",
            "TIDEGATE_PORT": "tcp://10.0.0.1:9876",
            "TIDEGATE_PORT_9876_TCP_ADDR": "10.0.0.1",
            "TIDEGATE_SERVER": "127.0.0.1:9876",
        }
        assert load({}, environ).origins == {}


class TestRefusals:
    @pytest.mark.parametrize(
        ("setting", "value", "words"),
        [
            ("flush", "never", "write sync or async"),
            ("listen", "9876", "no port"),
            ("listen", ":9876", "no host"),
            ("listen", "example.org:9876", "'example.org' is not an IP address"),
            ("listen", "127.0.0.1:70000", "'70000' is not a port"),
            ("advertise", "[::1]:9876", "IPv4"),
            ("advertise", "0.0.0.0:9876", "no client can connect"),
            ("max_pull_messages", "0", "the least is 1"),
            ("max_pull_messages", "many", "write a whole number"),
            ("max_pull_messages", "3.5", "write a whole number"),
            ("max_connections", "2000000", "the most is 1000000"),
            ("vip_channel", "maybe", "write true or false"),
            ("max_delay", "soon", "730d"),
            ("max_delay", "-5", "the least is 1s"),
            ("max_delay", "nan", "not a duration"),
            ("max_delay", "9999999999w", "not a duration"),
            ("max_delay", "40000d", "the most is 36500d"),
            ("connection_idle", "0s", "the least is 1s"),
            ("recurring_misfire_threshold", "0s", "the least is 1s"),
            ("delay_levels", "1s 5x", "level 2 is '5x'"),
            ("delay_levels", "1s 0s", "level 2 is '0s'"),
            ("delay_levels", " ", "names no level"),
            ("delay_levels", "99999999999999d", "longer than 100 years"),
            ("disk_reserve", "lots", "1GiB"),
            ("map_size_initial", "1KiB", "the least is 1MiB"),
            ("retention_hours", "nan", "a number of hours"),
            ("retention_hours", "-1", "the least is 0"),
            ("broker_name", "a b", "letters, digits"),
            ("log_level", "loud", "write debug, info, warn or error"),
        ],
    )
    def test_the_line_names_setting_value_origin_and_fix(
        self, tmp_path: Path, setting: str, value: str, words: str
    ) -> None:
        for line, origin in (
            (refusal(flags={setting: value}), "--" + setting.replace("_", "-")),
            (refusal(environ={f"TIDEGATE_{setting.upper()}": value}), "TIDEGATE_"),
            (refusal(write(tmp_path, f"\n{setting} = '{value}'\n")), "tidegate.toml, line 2"),
        ):
            assert line.startswith(f"{setting} = {value}")
            assert origin in line
            assert words in line

    @pytest.mark.parametrize("setting", ["data", "log_file"])
    def test_no_path_has_a_nul(self, tmp_path: Path, setting: str) -> None:
        line = refusal(write(tmp_path, f'{setting} = "a\\u0000b"\n'))
        assert line.startswith(f"{setting} = ")
        assert "no path has the character NUL" in line

    @pytest.mark.parametrize(
        ("key", "words"),
        [
            ("max_delays", "did you mean max_delay?"),
            ("messageDelayLevel", "its name here is delay_levels"),
            ("colour", "'tidegate config' lists them all"),
        ],
    )
    def test_unknown_settings(self, tmp_path: Path, key: str, words: str) -> None:
        line = refusal(write(tmp_path, f"{key} = 1\n"))
        assert line.startswith(f"unknown setting {key} in ")
        assert "line 1" in line
        assert words in line

    def test_unknown_variable(self) -> None:
        line = refusal(environ={"TIDEGATE_LISTN": "127.0.0.1:1"})
        assert "TIDEGATE_LISTN" in line
        assert "did you mean listen?" in line

    def test_sections_and_lists_in_the_file(self, tmp_path: Path) -> None:
        assert "top of the file" in refusal(write(tmp_path, "[server]\nport = 1\n"))
        assert "not a single value" in refusal(write(tmp_path, 'delay_levels = ["1s"]\n'))

    def test_wrong_types_in_the_file(self, tmp_path: Path) -> None:
        assert "max_connections = true" in refusal(write(tmp_path, "max_connections = true\n"))
        assert "disk_reserve = true" in refusal(write(tmp_path, "disk_reserve = true\n"))
        assert "max_delay = true" in refusal(write(tmp_path, "max_delay = true\n"))
        assert "broker_name = 5" in refusal(write(tmp_path, "broker_name = 5\n"))

    def test_as_an_editor_of_windows_saves_it(self, tmp_path: Path) -> None:
        file = tmp_path / "windows.toml"
        file.write_bytes(b'\xef\xbb\xbfbroker_name = "b"\r\nmax_connections = 5\r\n')
        loaded = load({}, {}, file)
        assert (loaded.config.broker_name, loaded.config.max_connections) == ("b", 5)
        assert loaded.origins["broker_name"] == f"{file}, line 1"

    def test_unusable_files(self, tmp_path: Path) -> None:
        assert "No such file" in refusal(tmp_path / "missing.toml")
        assert "Is a directory" in refusal(tmp_path)
        assert "not TOML" in refusal(write(tmp_path, "flush = = 1\n"))
        latin = tmp_path / "latin.toml"
        latin.write_bytes(b'broker_name = "\xe9"')
        assert "not UTF-8" in refusal(latin)
        for value in ("9" * 5_000, "[" * 3_000 + "]" * 3_000):
            assert "a value is too long" in refusal(write(tmp_path, f"max_delay = {value}\n"))

    def test_line_breaks_and_length_of_a_value_stay_out_of_the_line(self) -> None:
        assert len(refusal(flags={"broker_name": "a\n" + "b" * 5000})) < 300

    @pytest.mark.parametrize(
        ("name", "content"),
        [
            ("tls_key", "-----BEGIN PRIVATE KEY-----\nMIIE-secret"),
            ("tls_certificate", "\ufeff -----BEGIN RSA PRIVATE KEY----- MIIE-secret"),
            ("initial_user_file", '{ "username": "root", "password": "MIIE-secret"}'),
        ],
    )
    def test_what_a_secret_file_holds_is_not_shown(self, name: str, content: str) -> None:
        line = refusal(flags={name: content})
        assert line.startswith(f"{name} = ... (--")
        assert "it is the content of a file, not its path; write a path" in line
        assert "MIIE" not in line

    def test_several_wrong_values_give_the_first(self, tmp_path: Path) -> None:
        line = refusal(write(tmp_path, 'log_level = "loud"\nflush = "never"\n'))
        assert line.startswith("flush = never")


class TestAddresses:
    def test_no_address_for_clients(self) -> None:
        assert "set advertise" in refusal(flags={"listen": "0.0.0.0:9876"})
        assert "set advertise" in refusal(flags={"listen": "[::]:9876"})
        assert "set advertise" in refusal(flags={"listen": "[::1]:9876"})

    @pytest.mark.parametrize(
        ("listen", "advertise", "told"),
        [
            ("127.0.0.1:0", None, "127.0.0.1:4321"),
            ("localhost:9876", None, "127.0.0.1:4321"),
            ("0.0.0.0:0", "192.0.2.7", "192.0.2.7:4321"),
            ("0.0.0.0:0", "192.0.2.7:0", "192.0.2.7:4321"),
            ("[::]:9876", "192.0.2.7:30876", "192.0.2.7:30876"),
        ],
    )
    def test_what_clients_are_told(self, listen: str, advertise: str | None, told: str) -> None:
        config = load({"listen": listen, "advertise": advertise}, {}).config
        assert str(config.advertised(4321)) == told

    @given(st.ip_addresses(), st.integers(0, 65_535))
    def test_an_address_reads_back(self, host: object, port: int) -> None:
        address = HostPort(str(host), port)
        assert parse_host_port(str(address)) == address


class TestTogether:
    @pytest.mark.parametrize(
        ("name", "last"), [("listen", 65_515), ("advertise", 65_515), ("http", 65_533)]
    )
    def test_workers_need_ports_behind_the_shared_one(self, name: str, last: int) -> None:
        flags = {"workers": "2", name: f"127.0.0.1:{last + 1}"}
        line = refusal(flags=flags)
        assert f"{name} = 127.0.0.1:{last + 1} need ports up to 65536" in line
        assert line.endswith(f"set {name} to a port of at most {last}")
        load(flags | {name: f"127.0.0.1:{last}"}, {})
        load(flags | {"workers": "1"}, {})
        load(flags | {name: "127.0.0.1:0"}, {})

    @pytest.mark.parametrize(
        ("workers", "listen", "http", "vip_channel", "twice"),
        [
            (7, "127.0.0.1:9876", "127.0.0.1:9877", "true", 9884),
            (9, "127.0.0.1:9876", "0.0.0.0:9877", "false", 9886),
            (2, "127.0.0.1:9876", "127.0.0.1:9876", "true", 9876),
            (6, "127.0.0.1:9876", "127.0.0.1:9877", "true", None),
            (8, "127.0.0.1:9876", "127.0.0.1:9877", "false", None),
            (64, "127.0.0.1:9876", "127.0.0.2:9877", "true", None),
            (64, "127.0.0.1:9876", "127.0.0.1:10517", "true", None),
            (64, "127.0.0.1:9876", "127.0.0.1:0", "true", None),
        ],
    )
    def test_workers_need_each_port_once(
        self, workers: int, listen: str, http: str, vip_channel: str, twice: int | None
    ) -> None:
        flags = {"workers": str(workers), "listen": listen, "http": http}
        flags["vip_channel"] = vip_channel
        if twice is None:
            load(flags, {})
            return
        line = refusal(flags=flags)
        assert f"would need port {twice} for both" in line
        assert line.endswith(f"set http to a port past {9876 + 10 * workers}")

    @pytest.mark.parametrize(
        ("http", "vip_channel", "is_twice"),
        [
            ("127.0.0.1:9876", "false", True),
            ("127.0.0.1:9874", "true", True),
            ("0.0.0.0:9874", "true", True),
            ("127.0.0.1:9874", "false", False),
            ("127.0.0.2:9876", "true", False),
            ("127.0.0.1:9886", "true", False),
            ("127.0.0.1:9875", "true", False),
        ],
    )
    def test_one_process_needs_each_port_once(
        self, http: str, vip_channel: str, is_twice: bool
    ) -> None:
        """The start said that somebody else used it."""
        flags = {"listen": "127.0.0.1:9876", "http": http, "vip_channel": vip_channel}
        if not is_twice:
            load(flags, {})
            return
        assert refusal(flags=flags).endswith(
            f"listen = 127.0.0.1:9876 and http = {http} would need port {http[-4:]} for both; "
            "set http to a port past 9876"
        )

    def test_the_names_of_workers_have_numbers(self) -> None:
        load({"broker_name": "b" * 127}, {})
        load({"broker_name": "b" * 125, "workers": "10"}, {})
        line = refusal(flags={"broker_name": "b" * 125, "workers": "11"})
        assert line.endswith("set it to a name of at most 124 letters")

    def test_the_http_ports_of_workers_cannot_ask_for_certificates(self) -> None:
        flags = {"workers": "2", "http_tls": "true", "tls_client_ca": "ca.pem"}
        load(flags, {})
        line = refusal(flags=flags | {"http": "127.0.0.1:9877"})
        assert "workers = 2 would refuse the requests of the shared http port, which has no" in line

    def test_a_frame_must_hold_the_largest_message(self) -> None:
        line = refusal(flags={"max_message_size": "16MiB"})
        assert "max_frame_size = 16MiB" in line
        assert "max_message_size = 16MiB" in line
        loaded = load({"max_message_size": "16MiB", "max_frame_size": "16640KiB"}, {})
        assert loaded.config.max_frame_size == 16640 * 1024

    def test_the_vip_port_is_required_only_when_asked_for(self) -> None:
        assert not load({}, {}).config.vip_channel_required
        assert load({"vip_channel": True}, {}).config.vip_channel_required
        assert not load({"vip_channel": False}, {}).config.vip_channel_required


class TestDirectUse:
    def test_built_by_keyword_and_frozen(self, tmp_path: Path) -> None:
        config = Config(
            data=tmp_path, listen=HostPort("127.0.0.1", 0), max_delay=timedelta(minutes=1)
        )
        assert config.data == tmp_path
        assert config.max_delay_ms == 60_000
        for name in Config.model_fields:
            with pytest.raises(ValidationError):
                setattr(config, name, "async")
        with pytest.raises(ValidationError):
            Config(colour="red")  # type: ignore[call-arg]

    def test_the_environment_does_not_reach_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TIDEGATE_BROKER_NAME", "elsewhere")
        assert Config().broker_name == "broker-a"

    def test_defaults(self) -> None:
        config = Config()
        assert config.listen == HostPort("127.0.0.1", 9876)
        assert config.max_delay_ms == 2 * 365 * 86_400_000
        assert config.connection_idle == timedelta(seconds=120)
        assert config.retention_ms == 72 * 3_600_000
        assert config.max_message_size == 4_194_304
        assert len(config.delay_level_ms) == 18
        assert config.delay_level_ms[0] == 1_000
        assert config.delay_level_ms[-1] == 7_200_000

    def test_the_default_folder_is_the_users(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
        assert Config().data == tmp_path / "tidegate"

    def test_a_tilde_is_the_home_folder(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", "/home/someone")
        assert load({"data": "~/tide"}, {}).config.data == Path("/home/someone/tide")

    def test_a_user_without_a_home(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """This is the case in a container that runs under a numeric user id."""

        def unknown(_: int) -> None:
            raise KeyError("getpwuid(): uid not found")

        for variable in ("HOME", "XDG_DATA_HOME"):
            monkeypatch.delenv(variable, raising=False)
        monkeypatch.setattr(pwd, "getpwuid", unknown)
        assert Config().data == Path("/var/lib/tidegate")
        assert "there is no home folder for its ~" in refusal(flags={"data": "~/tide"})
        assert "write the whole path" in refusal(environ={"TIDEGATE_CONFIG": "~/tide.toml"})


class TestValues:
    @pytest.mark.parametrize(
        ("text", "seconds"),
        [
            ("730d", 730 * 86_400),
            ("48h", 172_800),
            ("1h30m", 5_400),
            ("500ms", 0.5),
            ("2w", 1_209_600),
            ("90", 90),
            ("1.5", 1.5),
            ("PT48H", 172_800),
            ("p2d", 172_800),
            ("1H30M", 5_400),
            (120, 120),
        ],
    )
    def test_durations(self, text: object, seconds: float) -> None:
        assert parse_duration(text) == timedelta(seconds=seconds)

    @pytest.mark.parametrize("text", ["1M", " 1.5M "])
    def test_what_could_be_minutes_or_months_is_no_duration(self, text: str) -> None:
        with pytest.raises(
            ValueError, match=f"minutes or months; for minutes write {text.lower().strip()}"
        ):
            parse_duration(text)

    @given(st.integers(0, 36_500 * 86_400_000))
    def test_a_duration_reads_back(self, milliseconds: int) -> None:
        duration = timedelta(milliseconds=milliseconds)
        assert parse_duration(show_duration(duration)) == duration

    @given(st.integers(0, 86_400_000_000))
    def test_so_does_one_with_a_fraction_of_a_millisecond(self, microseconds: int) -> None:
        duration = timedelta(microseconds=microseconds)
        assert parse_duration(show_duration(duration)) == duration

    @pytest.mark.parametrize(
        ("text", "size"),
        [
            ("4096", 4096),
            ("256KiB", 262_144),
            ("64M", 67_108_864),
            ("1 gib", 1 << 30),
            ("2GB", 2_000_000_000),
            ("1.5MiB", 1_572_864),
            ("17b", 17),
            (5, 5),
        ],
    )
    def test_sizes(self, text: object, size: int) -> None:
        assert parse_size(text) == size

    @given(st.integers(0, 1 << 50))
    def test_a_size_reads_back(self, size: int) -> None:
        assert parse_size(show_size(size)) == size

    def test_delay_levels(self) -> None:
        assert parse_delay_levels("1s 2m 3h 4d") == (1_000, 120_000, 10_800_000, 345_600_000)
        assert load({"delay_levels": " 1s   5s "}, {}).config.delay_levels == "1s 5s"


class TestDescriptions:
    def test_every_setting_says_what_it_means(self) -> None:
        entries = descriptions()
        assert list(entries) == list(Config.model_fields)
        assert all(entry.meaning.endswith(".") for entry in entries.values())

    def test_the_sample_as_printed_sets_nothing(self) -> None:
        assert tomllib.loads(toml_sample(Config())) == {}

    def test_the_sample_with_every_setting_gives_the_same_settings(self, tmp_path: Path) -> None:
        config = Config(
            data=tmp_path / 'folder "with" quotes and ümlaut',
            listen=HostPort("0.0.0.0", 0),
            advertise=HostPort("192.0.2.7", 4000),
            vip_channel=False,
            flush="async",
            max_delay=timedelta(days=3, milliseconds=7),
            delay_levels="1s 2s",
            retention_hours=0.25,
            disk_reserve=12_345,
            log_file=tmp_path / "log",
        )
        sample = toml_sample(config, chosen=frozenset(Config.model_fields))
        loaded = load({}, {}, write(tmp_path, sample))
        assert loaded.config == config
        assert set(loaded.origins) == set(Config.model_fields)

    def test_the_sample_with_its_marks_taken_off_gives_the_defaults(self, tmp_path: Path) -> None:
        lines = toml_sample(Config()).splitlines()
        settings = [line[2:] for line in lines if line.startswith("# ") and " = " in line]
        loaded = load({}, {}, write(tmp_path, "\n".join(settings)))
        assert len(loaded.origins) == len(Config.model_fields)
        assert loaded.config.model_dump() == Config().model_dump()

    def test_default_levels_are_upstreams(self) -> None:
        assert descriptions()["delay_levels"].default == DEFAULT_DELAY_LEVELS
