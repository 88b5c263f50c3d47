# SPDX-License-Identifier: Apache-2.0
"""What configuration is accepted, from where, and what every refused one is told.

Where directories are chosen is in test_config_places; printing is in test_config_print.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from spotwatch.config import Settings
from spotwatch.config_load import load
from spotwatch.errors import ConfigError
from tests.config_helpers import CloudConfig, Loader, find_config


@pytest.fixture
def loader(tmp_path: Path) -> Loader:
    """Give each test its own file."""
    return Loader(tmp_path)


def test_nothing_at_all_is_a_configuration(loader: Loader) -> None:
    """No file, no variable and no flag give the documented defaults."""
    loaded = loader()
    assert loaded.settings.providers == ("auto",)
    assert loaded.settings.runtime_dir == Path("/run/spotwatch")
    assert loaded.settings.policy.save_seconds == 30
    assert loaded.warnings == ()
    assert loaded.path is None
    assert set(loaded.sources.values()) == {"default"}


def test_flags_go_before_environment_before_file(loader: Loader) -> None:
    """Each layer wins over the one below, and the winner is named."""
    toml = '[log]\nlevel = "debug"\nformat = "json"\n[policy]\nsave_seconds = 5\nsafety_factor = 2'
    env = {"SPOTWATCH_LOG__LEVEL": "error", "SPOTWATCH_POLICY__SAVE_SECONDS": "7.5"}
    loaded = loader(toml, env, {"log.level": "warning", "log.format": None})
    assert loaded.settings.log.level == "warning"
    assert loaded.settings.log.format == "json"
    assert loaded.settings.policy.save_seconds == 7.5
    assert loaded.sources["log.level"] == "flag"
    assert loaded.sources["log.format"] == f"file {loader.path}"
    assert loaded.sources["policy.save_seconds"] == "environment SPOTWATCH_POLICY__SAVE_SECONDS"
    assert loaded.sources["policy.stop_margin_seconds"] == "default"


def test_file_is_found_by_flag_variable_or_default_place(tmp_path: Path) -> None:
    """--config goes before SPOTWATCH_CONFIG before the default path."""
    for name, seconds in (("a", 1), ("b", 2), ("c", 3)):
        (tmp_path / name).write_text(f"[policy]\nsave_seconds = {seconds}", encoding="utf-8")

    def seconds_of(path: Path | None, env: dict[str, str]) -> float:
        loaded = load(
            path=path, environ=env, flags={}, provider_configs=find_config, default_path=tmp_path / "c"
        )
        return loaded.settings.policy.save_seconds

    env = {"SPOTWATCH_CONFIG": str(tmp_path / "b")}
    assert seconds_of(tmp_path / "a", env) == 1
    assert seconds_of(None, env) == 2
    assert seconds_of(None, {}) == 3


@pytest.mark.parametrize("by", ["flag", "variable"])
def test_missing_file_is_refused_when_named(by: str, tmp_path: Path) -> None:
    """A file that somebody named must exist."""
    missing = tmp_path / "none.toml"
    with pytest.raises(ConfigError, match=r"none\.toml: cannot be read: No such file"):
        load(
            path=missing if by == "flag" else None,
            environ={"SPOTWATCH_CONFIG": str(missing)} if by == "variable" else {},
            flags={},
            provider_configs=find_config,
        )


def test_syntax_error_names_file_line_and_column(loader: Loader) -> None:
    """A TOML error says where."""
    text = loader.problems('[log]\nlevel = "info"\nformat = json\n')
    assert str(loader.path) in text
    assert "line 3, column 10" in text


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"a = '\xff'", "not UTF-8 at byte 5"),
        (b"a = " + b"[" * 100_000, "nested too deeply"),
        (b"#" * (1024 * 1024 + 1), "cannot be read: More than 1048576 bytes"),
    ],
)
def test_unreadable_file_is_named(body: bytes, said: str, tmp_path: Path) -> None:
    """What is no text, or a bomb, is refused in words."""
    path = tmp_path / "c.toml"
    path.write_bytes(body)
    with pytest.raises(ConfigError, match=rf"c\.toml: {said}"):
        load(path=path, environ={}, flags={}, provider_configs=find_config)


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_file_is_neither_waited_for_nor_read(make: Callable[[Path], None], tmp_path: Path) -> None:
    """A pipe does not hang the start, and a device that never ends is not read."""
    path = tmp_path / "c.toml"
    make(path)
    with pytest.raises(ConfigError, match=r"c\.toml: cannot be read: Not a regular file"):
        load(path=path, environ={}, flags={}, provider_configs=find_config)


def test_a_link_to_a_file_is_followed(tmp_path: Path) -> None:
    """Kubernetes mounts each file of a ConfigMap as a link."""
    (tmp_path / "data").write_text('[log]\nlevel = "error"\n')
    path = tmp_path / "c.toml"
    path.symlink_to("data")
    loaded = load(path=path, environ={}, flags={}, provider_configs=find_config)
    assert loaded.settings.log.level == "error"


def test_everything_wrong_is_said_at_once(loader: Loader) -> None:
    """One start names every mistake, each with its path and origin."""
    toml = """
providers = "aws"
colour = "red"
[policy]
mode = "flush"
save_seconds = -1
safety_factor = nan
[release]
azure_approve = "false"
[[target]]
unit = "a.service"
pidfile = "/run/a.pid"
[[target]]
process = "("
signal = "SIGTREM"
[[target]]
unti = "a.service"
[http]
listen = "9475"
[hook]
on_notice = "notify-send"
[provider.cloud]
interval_seconds = 0
endpont = "x"
[provider.cluod]
"""
    text = loader.problems(toml, {"SPOTWATCH_LOG__LEVEL": "loud", "SPOTWATCH_POLICY__RESAVE": "1"})
    lines = {line.split(":", 1)[0]: line for line in text.splitlines()}
    assert "is no list" in lines["providers"]
    assert "unknown key" in lines["colour"]
    assert "'flush-then-stop', 'flush-only', 'stop-now'" in lines["policy.mode"]
    assert "0 or more" in lines["policy.save_seconds"]
    assert "no number" in lines["policy.safety_factor"]
    assert "neither true nor false" in lines["release.azure_approve"]
    assert "unit and pidfile" in lines["target.0"]
    assert "no regular expression" in lines["target.1.process"]
    assert "did you mean unit" in lines["target.2.unti"]
    assert "names no trainer" in lines["target.2"]
    assert "did you mean SIGTERM" in lines["target.1.signal"]
    assert "HOST:PORT" in lines["http.listen"]
    assert "is no list" in lines["hook.on_notice"]
    assert "above 0" in lines["provider.cloud.interval_seconds"]
    assert "did you mean endpoint" in lines["provider.cloud.endpont"]
    assert "have cloud, other" in lines["provider.cluod"]
    assert "(from environment SPOTWATCH_LOG__LEVEL)" in lines["log.level"]
    assert "unknown key" in lines["policy.resave"]
    assert f"(from file {loader.path})" in lines["colour"]
    assert len(lines) == 18


BAD = [
    ("[policy]\nsave_seconds = true", "policy.save_seconds: True is no number"),
    ('[policy]\nsave_seconds = "30"', "policy.save_seconds: '30' is no number"),
    ("[policy]\nsave_seconds = inf", "policy.save_seconds: inf is no number"),
    ("[policy]\nsave_seconds = 1e300", "more than a year"),
    ("[policy]\nreflush_seconds = 0", "policy.reflush_seconds: 0 must be above 0"),
    ("[policy]\nsafety_factor = 0.5", "policy.safety_factor: 0.5 would stop later"),
    (
        "[policy]\nsafety_factor = 1e300",
        "policy.safety_factor: 1e+300 would leave no time to train; at most 100",
    ),
    ('[policy]\nends_at = "2026-11-29T16:00:00"', "has no zone"),
    ("[policy]\nends_at = 2026-11-29", "policy.ends_at: datetime.date(2026, 11, 29) is no text"),
    ('[policy]\nends_at = "tomorrow"', "policy.ends_at: 'tomorrow' is no time"),
    ("policy = 3", "policy: 3 is no table"),
    ("[flag]\npath = 3", "flag.path: 3 is no text"),
    ('[flag]\npath = "a/../b"', "flag.path:"),
    ('[flag]\npath = "order.json"', "name of another file"),
    ('[flag]\nowner = "nobody-at-all:root"', "flag.owner: there is no user"),
    ('[flag]\nowner = "root:no-such-group"', "flag.owner: there is no group"),
    ('[flag]\nowner = "4000000"', "write 4000000:GID"),
    ("[[target]]\nunit = ''", "target.0: names no trainer"),
    ("[[target]]\nunit = '--now'", "target.0.unit: '--now' is no name"),
    ("[[target]]\npidfile = 'run.pid'", "target.0.pidfile: 'run.pid' is not an absolute path"),
    ("[[target]]\nprocess = '.*'", "matches every process"),
    ("[[target]]\nprocess = 'x'\nsignal = 'TERM'", "did you mean SIGTERM"),
    ("[[target]]\nprocess = 'x'\nsignal = 'SIGKILL'", "no time to save"),
    ("[[target]]\nprocess = 'x'\nuser = 'nobody-at-all'", "target.0.user: there is no user"),
    ("[[target]]\nprocess = 'x'\nleaves = true", "target.0.leaves: True is none of 'auto'"),
    ("[hook]\non_saved = ['a', 3]", "hook.on_saved.1: 3 is no text"),
    ("[hook]\non_saved_timeout_seconds = 0", "above 0"),
    ("[[announce]]\npreset = 'slack'", "announce.0: names no receiver"),
    ("[[announce]]\nurl = 'ftp://x'", "announce.0.url: is no http:// or https://"),
    ("[[announce]]\nurl = 'https://x'\non = ['save']", "'save' is none of notice, saved"),
    ("[[announce]]\nurl = 'https://x'\nheaders = {a = 1}", "announce.0.headers: 1 is no text"),
    ("[http]\nlisten = '::1:80'", "brackets"),
    ("[http]\nlisten = 'localhost:70000'", "is no address"),
    ("[webhook]\nlisten = ':8080'", "openssl rand"),
    ("[webhook]\nmax_body_bytes = 1.5", "webhook.max_body_bytes: 1.5 is no whole number"),
    ("[webhook]\nmax_body_bytes = 0", "above 0"),
    ("[webhook]\nruntime_dir = '/x'", "webhook.runtime_dir: unknown key; did you mean runtime_dir?"),
    ("[release]\nxyz = 1", "release.xyz: unknown key; have azure_approve"),
    ("listen = ':80'", "did you mean http.listen or webhook.listen?"),
    ("[polcy]\nmode = 'stop-now'", "polcy: unknown key; did you mean policy?"),
    ("runtime_dir = 'run'", "runtime_dir: 'run' is not an absolute path"),
    ("providers = ['aws2']", "providers: unknown provider 'aws2'; have cloud, other"),
    ("provider = 3", "provider: is no table of tables"),
    ("[provider]\ncloud = 3", "provider.cloud: 3 is no table"),
    ("[provider.cloud]\nttl = 101", "provider.cloud: ttl 101 is over 100; the service refuses it"),
    ("[provider.cloud]\nipv6 = 'no'", "provider.cloud.ipv6: 'no' is neither true nor false"),
    ('[log]\nlevel = "a\\u0000"', "log.level:"),
]


@pytest.mark.parametrize(("toml", "said"), BAD, ids=[said for _, said in BAD])
def test_bad_value_is_refused_with_what_to_do(toml: str, said: str, loader: Loader) -> None:
    """Each mistake gets one line that names key, value and what is wanted."""
    text = loader.problems(toml)
    assert said in text
    assert len(text.splitlines()) == 1


def test_a_list_given_by_flag_replaces_the_whole_list(loader: Loader) -> None:
    """--unit names the target, whatever targets the file has."""
    toml = "[[target]]\nunit = 'a.service'\nsignal = 'SIGUSR1'\n[[target]]\nunit = 'b.service'"
    settings = loader(toml, flags={"target": [{"unit": "c.service"}]}).settings
    assert [(t.unit, t.signal) for t in settings.target] == [("c.service", "SIGTERM")]


def test_a_key_that_is_value_and_table_is_refused(loader: Loader) -> None:
    """File and environment that disagree on the shape of a key are both named wrong."""
    assert "policy.mode: is set both" in loader.problems("policy = 3", {"SPOTWATCH_POLICY__MODE": "stop-now"})


def test_empty_section_changes_nothing(loader: Loader) -> None:
    """A section without keys is fine, also when the environment fills it."""
    assert loader("[policy]", {"SPOTWATCH_POLICY__MODE": "stop-now"}).settings.policy.mode == "stop-now"
    assert loader("[provider.cloud]\n[hook]").settings.provider == {"cloud": CloudConfig()}


def test_only_named_providers_are_asked_for(loader: Loader) -> None:
    """Nothing foreign is imported: a config class is asked for once, for a listed or configured name."""
    asked: list[str] = []

    def ask(name: str) -> type:
        asked.append(name)
        return CloudConfig

    loader("providers = ['auto', 'cloud']\n[provider.other]\nttl = 3", provider_configs=ask)
    assert asked == ["cloud", "other"]


def test_time_without_quotes_is_a_time(loader: Loader) -> None:
    """TOML's own date-time is as good as a text."""
    settings = loader("[policy]\nends_at = 2026-11-29T16:00:00Z").settings
    assert settings.policy.ends_at == "2026-11-29T16:00:00+00:00"


def test_child_may_be_a_target_without_a_name(loader: Loader) -> None:
    """Under `exec` a target that names nothing sets how the child is told."""
    settings = loader("[[target]]\nsignal = 'SIGUSR1'", has_child=True).settings
    assert settings.target[0].signal == "SIGUSR1"


def test_every_setting_has_a_source(loader: Loader) -> None:
    """--print-config can name an origin for all keys."""
    loaded = loader("[[target]]\nunit = 'a'\n[provider.cloud]\nttl = 3")
    assert loaded.sources["target.0.unit"].startswith("file ")
    assert loaded.sources["target.0.signal"] == "default"
    assert loaded.sources["provider.cloud.ttl"].startswith("file ")
    assert loaded.sources["provider.cloud.names"] == "default"
    every = {f.name for f in fields(Settings)} - {"announce"}
    assert {key.split(".")[0] for key in loaded.sources} >= every


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
WORDS = ("", "listen", "0", "on", "path", "mode")
KEYS = st.sampled_from([f"{section.name}.{word}" for section in fields(Settings) for word in WORDS])


@hypothesis_settings(max_examples=200)
@given(st.dictionaries(KEYS | st.text(max_size=12), JUNK, max_size=4))
def test_any_junk_is_refused_in_words(flags: dict[str, object]) -> None:
    """Whatever the values are, there are settings or problems, never another exception."""
    with suppress(ConfigError):
        load(
            path=None,
            environ={f"SPOTWATCH_{k.upper()}": str(v) for k, v in flags.items() if "\0" not in f"{k}{v}"},
            flags=flags,
            provider_configs=find_config,
            default_path=Path("/none"),
            is_writable=lambda _: True,
        )
