# SPDX-License-Identifier: Apache-2.0
"""Each key as a variable, and what a bad one is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.config_helpers import CloudConfig, Loader


@pytest.fixture
def loader(tmp_path: Path) -> Loader:
    """Give each test its own file."""
    return Loader(tmp_path)


def test_every_key_has_a_variable(loader: Loader, tmp_path: Path) -> None:
    """Text from variables becomes numbers, truths, lists and tables."""
    loaded = loader(
        env={
            "SPOTWATCH_PROVIDERS": "cloud, other",
            "SPOTWATCH_RUNTIME_DIR": "/a",
            "SPOTWATCH_STATE_DIR": str(tmp_path),
            "SPOTWATCH_RELEASE__AZURE_APPROVE": "true",
            "SPOTWATCH_WEBHOOK__MAX_BODY_BYTES": "1000",
            "SPOTWATCH_PROVIDER__CLOUD__INTERVAL_SECONDS": "2",
            "SPOTWATCH_PROVIDER__CLOUD__NAMES": "a,b",
            "SPOTWATCH_TARGET__0__UNIT": "a.service",
            "SPOTWATCH_TARGET__1__PROCESS": "train,fast",
            "SPOTWATCH_HOOK__ON_SAVED": '["sh", "-c", "echo a,b"]',
            "SPOTWATCH_HOOK__ON_NOTICE": "touch,/tmp/x",
            "SPOTWATCH_ANNOUNCE__0__URL": "https://example.com",
            "SPOTWATCH_ANNOUNCE__0__HEADERS": '{"X-Team": "ml"}',
            "SPOTWATCH_LOG__FORMAT": "json",
        }
    )
    settings = loaded.settings
    assert settings.providers == ("cloud", "other")
    assert settings.runtime_dir == Path("/a")
    assert settings.state_dir == tmp_path
    assert settings.release.azure_approve is True
    assert settings.webhook.max_body_bytes == 1000
    assert settings.provider["cloud"] == CloudConfig(interval_seconds=2.0, names=("a", "b"))
    assert settings.provider["other"] == CloudConfig()
    assert [t.unit for t in settings.target] == ["a.service", ""]
    assert settings.target[1].process == "train,fast"
    assert settings.hook.on_saved == ("sh", "-c", "echo a,b")
    assert settings.hook.on_notice == ("touch", "/tmp/x")
    assert settings.announce[0].headers == {"X-Team": "ml"}
    assert settings.log.format == "json"
    assert type(settings.target[0].unit) is str
    assert loaded.sources["target.1.process"] == "environment SPOTWATCH_TARGET__1__PROCESS"


def test_variable_changes_one_key_of_a_target_in_the_file(loader: Loader) -> None:
    """Arrays of tables are overridden key by key."""
    toml = "[[target]]\nunit = 'a.service'\n[[target]]\nunit = 'b.service'"
    loaded = loader(toml, {"SPOTWATCH_TARGET__1__SIGNAL": "SIGUSR1"})
    assert [(t.unit, t.signal) for t in loaded.settings.target] == [
        ("a.service", "SIGTERM"),
        ("b.service", "SIGUSR1"),
    ]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("SPOTWATCH_POLICY__SAVE_SECONDS", "soon", "'soon' is no number"),
        ("SPOTWATCH_POLICY__SAVE_SECONDS", "", "'' is no number"),
        ("SPOTWATCH_POLICY__SAVE_SECONDS", "nan", "is no number"),
        ("SPOTWATCH_WEBHOOK__MAX_BODY_BYTES", "1.5", "is no whole number"),
        ("SPOTWATCH_RELEASE__AZURE_APPROVE", "maybe", "neither true nor false"),
        ("SPOTWATCH_HOOK__ON_SAVED", "[1", "is no JSON"),
        ("SPOTWATCH_TARGET__1__UNIT", "a.service", "go from 0 without a gap"),
        ("SPOTWATCH_TARGET__X__UNIT", "a.service", "is no list"),
        ("SPOTWATCH_PROVIDER__AWS2__INTERVAL_SECONDS", "1", "unknown provider 'aws2'"),
        ("SPOTWATCH__UNIT", "1", "names no setting"),
        ("SPOTWATCH_FLAG__", "1", "names no setting"),
        ("SPOTWATCH_FLAG__PATH__NAME", "1", "is no text"),
    ],
)
def test_bad_variable_is_refused_by_its_name(name: str, text: str, said: str, loader: Loader) -> None:
    """What a variable holds is checked like the file, and the variable is named."""
    problems = loader.problems(env={name: text})
    assert said in problems
    assert name in problems


def test_unknown_variable_without_section_only_warns(loader: Loader) -> None:
    """Kubernetes injects SPOTWATCH_PORT for a Service of that name; that must not stop a start."""
    loaded = loader(env={"SPOTWATCH_PORT": "tcp://10.0.0.1:9475", "SPOTWATCH_RUN_ID": "r", "OTHER": "1"})
    assert loaded.warnings == ("SPOTWATCH_PORT: unknown variable, ignored",)
