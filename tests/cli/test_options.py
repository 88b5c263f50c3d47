# SPDX-License-Identifier: Apache-2.0
"""What the shared options mean for the settings, and how a command receives them.

What settings are accepted is in tests/test_config.py.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from spotwatch.cli import cli
from spotwatch.cli._options import (
    Options,
    daemon_options,
    find_runtime_dir,
    load_settings,
    peek,
    provider_config,
    settings_options,
)
from spotwatch.config_print import print_config
from spotwatch.errors import ConfigError
from spotwatch.providers import names


def parse(*arguments: str) -> Options:
    """Return what a daemon command receives for these arguments."""
    got: list[Options] = []

    @click.command()
    @daemon_options
    @click.argument("words", nargs=-1)
    def command(options: Options, words: tuple[str, ...]) -> None:
        """Keep what came."""
        got.append(options)

    result = CliRunner().invoke(command, list(arguments))
    assert result.exit_code == 0, result.output
    return got[0]


def test_nothing_given_sets_nothing() -> None:
    """Without options every setting is left to environment and file."""
    options = parse()
    assert options == Options()
    assert [v for v in options.flags().values() if v is not None] == []


def test_all_daemon_options() -> None:
    """Each option of the contract arrives under its name; relative places are those one stands in."""
    options = parse(
        *("--config", "/c.toml", "--provider", "aws", "--provider", "file", "--runtime-dir", "run"),
        *("--state-dir", "/s", "--unit", "a.service", "--log-level", "debug", "--log-format", "json"),
        *("--dry-run", "--once", "--print-config", "--exit-with-trainer"),
    )
    assert options == Options(
        config=Path("/c.toml"),
        provider=("aws", "file"),
        runtime_dir=Path.cwd() / "run",
        state_dir=Path("/s"),
        unit="a.service",
        log_level="debug",
        log_format="json",
        dry_run=True,
        once=True,
        print_config=True,
        exit_with_trainer=True,
    )


def test_once_is_not_for_exec() -> None:
    """It would end before the command had begun, and with 0."""
    result = CliRunner().invoke(cli, ["exec", "--once", "--", "true"])
    assert result.exit_code == 2
    assert "use it with `spotwatch run`" in result.output


def test_options_become_settings(tmp_path: Path) -> None:
    """Flags win over the environment, and are named as the source."""
    options = Options(provider=("file",), runtime_dir=tmp_path / "r", process="train.py", log_level="debug")
    environ = {"SPOTWATCH_LOG__LEVEL": "error", "SPOTWATCH_PROVIDERS": "aws"}
    loaded = load_settings(options, environ=environ)
    assert loaded.settings.providers == ("file",)
    assert loaded.settings.runtime_dir == tmp_path / "r"
    assert [t.process for t in loaded.settings.target] == ["train.py"]
    assert loaded.settings.log.level == "debug"
    assert loaded.sources["log.level"] == loaded.sources["target.0.process"] == "flag"


def test_unknown_provider_lists_those_there_are() -> None:
    """A misspelt cloud is refused with the names of all clouds."""
    with pytest.raises(ConfigError) as caught:
        load_settings(Options(provider=("aws2", "auto")), environ={})
    assert str(caught.value) == f"providers: unknown provider 'aws2'; have {', '.join(names())} (from flag)"


def test_two_targets_on_the_command_line_are_refused() -> None:
    """--unit and --pidfile together would be a riddle."""
    with pytest.raises(ConfigError, match="--unit and --pidfile are given"):
        load_settings(Options(unit="a.service", pidfile=Path("/p")), environ={})


def test_only_named_providers_are_imported() -> None:
    """`auto` and no section import no provider, and no heavy library."""
    script = (
        "import sys; from spotwatch.cli._options import *; load_settings(Options(), environ={})\n"
        "bad = ('boto3', 'requests', 'torch', 'rich', 'spotwatch.providers.aws', 'aiohttp')\n"
        "print([m for m in bad if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_runtime_dir_is_found_whatever_else_is_wrong(tmp_path: Path) -> None:
    """A misspelt key elsewhere does not keep a notice by hand from its place."""
    path = tmp_path / "c.toml"
    path.write_text('runtime_dir = "/from/file"\ncolour = "red"\n[http]\nlisten = "x"', encoding="utf-8")
    options = Options(config=path)
    assert find_runtime_dir(options, environ={}) == Path("/from/file")
    assert find_runtime_dir(options, environ={"SPOTWATCH_RUNTIME_DIR": "/env"}) == Path("/env")
    assert find_runtime_dir(Options(config=path, runtime_dir=Path("/flag")), environ={}) == Path("/flag")
    assert find_runtime_dir(Options(), environ={"RUNTIME_DIRECTORY": "/sd"}) == Path("/sd")
    assert peek(options, "http.listen", environ={}) == "x"
    assert peek(options, "http.port", environ={}) is None


def test_help_names_every_option() -> None:
    """Nothing is hidden."""

    @click.command()
    @settings_options
    def command(options: Options) -> None:
        """Do nothing."""

    output = CliRunner().invoke(command, ["--help"]).output
    for name in ("config", "provider", "runtime-dir", "state-dir", "unit", "pidfile", "process", "log-level"):
        assert f"--{name} " in output
    assert "--dry-run" not in output


@pytest.mark.parametrize("name", names())
def test_every_providers_section_loads_and_prints(name: str, tmp_path: Path) -> None:
    """Each provider's own config class takes a file, a variable and its own output."""
    path = tmp_path / "c.toml"
    path.write_text(f"[provider.{name}]", encoding="utf-8")
    path.chmod(0o600)
    first = load_settings(Options(config=path), environ={})
    path.write_text(print_config(first), encoding="utf-8")
    second = load_settings(Options(config=path), environ={})
    assert second.settings == first.settings
    durations = [f.name for f in fields(provider_config(name)) if f.name.endswith("_seconds")]
    for key in durations:
        variable = f"SPOTWATCH_PROVIDER__{name.upper()}__{key.upper()}"
        with pytest.raises(ConfigError, match=rf"provider\.{name}.*{variable}"):
            load_settings(Options(config=path), environ={variable: "-1"})
    with pytest.raises(ConfigError, match=f"provider.{name}.colour: unknown key"):
        load_settings(Options(config=path), environ={f"SPOTWATCH_PROVIDER__{name.upper()}__COLOUR": "1"})
