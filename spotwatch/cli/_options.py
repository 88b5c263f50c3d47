# SPDX-License-Identifier: Apache-2.0
"""The options that commands share, and the settings that follow from them.

It does not know what a command does with them, and imports a provider only when it is named.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import update_wrapper
from pathlib import Path
from typing import Any

import click

from spotwatch import providers
from spotwatch.config_layers import DEFAULT_PATH, read_layers
from spotwatch.config_load import Loaded, load
from spotwatch.config_places import choose_runtime_dir
from spotwatch.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the shared options said; a None was not given."""

    config: Path | None = None
    provider: tuple[str, ...] = ()
    runtime_dir: Path | None = None
    state_dir: Path | None = None
    unit: str | None = None
    pidfile: Path | None = None
    process: str | None = None
    log_level: str | None = None
    log_format: str | None = None
    dry_run: bool = False
    once: bool = False
    print_config: bool = False
    exit_with_trainer: bool = False

    def flags(self) -> dict[str, object]:
        """Return the settings among them, as `config_load.load` takes them.

        Raises:
            ConfigError: more than one of unit, pidfile and process is given.
        """
        named = {
            key: str(value)
            for key, value in (("unit", self.unit), ("pidfile", self.pidfile), ("process", self.process))
            if value
        }
        if len(named) > 1:
            raise ConfigError(f"{' and '.join(f'--{n}' for n in named)} are given; keep one")
        return {
            "providers": self.provider or None,
            "runtime_dir": self.runtime_dir,
            "state_dir": self.state_dir,
            "target": [named] if named else None,
            "log.level": self.log_level,
            "log.format": self.log_format,
        }


# A directory on the command line is relative to where one stands; everywhere else it must be absolute.
# Whether it can be read is asked where it matters, with better words than click has.
_PLACE = click.Path(path_type=Path, resolve_path=False, file_okay=False, readable=False)
_FILE = click.Path(path_type=Path, readable=False)

_config = click.option(
    "--config", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
    help=f"Read this TOML file instead of {DEFAULT_PATH}.",
)  # fmt: skip
_runtime_dir = click.option(
    "--runtime-dir", type=_PLACE, metavar="DIR", help="Where daemon and trainer meet."
)
_state_dir = click.option("--state-dir", type=_PLACE, metavar="DIR", help="What outlives a restart.")
_provider = click.option(
    "--provider", multiple=True, metavar="NAME",
    help="Watch this cloud, without detection; may be repeated.  [default: auto]",
)  # fmt: skip
_target = (
    click.option("--unit", metavar="NAME", help="The trainer is this systemd unit."),
    click.option("--pidfile", type=_FILE, metavar="FILE", help="The trainer's pid is in it."),
    click.option("--process", metavar="REGEX", help="The trainer's command line matches this."),
)
_log = (
    click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"])),
    click.option("--log-format", type=click.Choice(["auto", "console", "json"])),
)
_daemon = (
    click.option("--dry-run", is_flag=True, help="Watch and log what would be done; do nothing."),
    click.option("--print-config", is_flag=True, help="Print the configuration in force, secrets masked."),
)
_PLACES_AND_TARGET = (_runtime_dir, _state_dir, *_target, *_log)
_ONCE = "--once", "Ask each cloud once, carry out what is due, exit 0."
_WITH_TRAINER = "--exit-with-trainer", "Exit when the trainer does, with its outcome."


def _beside(*, hidden: bool = False) -> tuple[Callable[..., Any], ...]:
    """Return the options for a trainer that is no child: `exec` takes them, and has no use for them."""
    return tuple(
        click.option(name, is_flag=True, help=text, hidden=hidden) for name, text in (_ONCE, _WITH_TRAINER)
    )


def place_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --config and --runtime-dir, for commands that talk to a running daemon."""
    return _collect(function, (_config, _runtime_dir))


def settings_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that change settings; the command receives them as `options: Options`."""
    return _collect(function, (_config, _provider, _runtime_dir, _state_dir, *_target, *_log))


def daemon_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add what `run` takes; the command receives it as `options: Options`."""
    return _collect(function, (_config, _provider, *_daemon, *_beside(), *_PLACES_AND_TARGET))


def child_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add what `exec` takes; the command receives it as `options: Options`."""
    return _collect(function, (_config, _provider, *_daemon, *_beside(hidden=True), *_PLACES_AND_TARGET))


def load_settings(
    options: Options, *, environ: Mapping[str, str] = os.environ, has_child: bool = False
) -> Loaded:
    """Return the checked settings that these options, the environment and the file amount to.

    Args:
        options: from one of the decorators here.
        environ: the environment.
        has_child: the trainer is a child of ours (`exec`).

    Raises:
        ConfigError: every problem at once; an unknown provider lists those there are.
    """
    return load(
        path=options.config,
        environ=environ,
        flags=options.flags(),
        provider_configs=provider_config,
        inbound_configs=inbound_config,
        has_child=has_child,
    )


def provider_config(name: str) -> type:
    """Return the config class of the provider `name`, importing that one only.

    Raises:
        ConfigError: there is none of that name.
    """
    return providers.load(name).config_class


def inbound_config(name: str) -> type:
    """Return the config class of the inbound mail service `name`, importing that one only.

    Raises:
        ConfigError: there is none of that name.
    """
    # Imported late: a daemon that hears no mail has no use for it.
    from spotwatch.mail import inbound  # noqa: PLC0415

    return inbound.load(name).config_class


def find_runtime_dir(options: Options, *, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the runtime directory as the daemon finds it, whatever else is wrong in the configuration.

    A notice by hand must not fail because a receiver's address is misspelt.

    Raises:
        ConfigError: the file that names it is missing or no TOML.
    """
    named = peek(options, "runtime_dir", environ=environ)
    if isinstance(named, str | Path) and Path(named).is_absolute():
        return Path(named)
    return choose_runtime_dir(environ, uid=os.geteuid())[0]


def peek(options: Options, key: str, *, environ: Mapping[str, str] = os.environ) -> object:
    """Return one setting by its dotted key, unchecked; None where nothing sets it.

    Raises:
        ConfigError: the configuration file is missing though named, or is no TOML.
    """
    layers, _, _, _ = read_layers(
        path=options.config, environ=environ, flags=options.flags(), default_path=DEFAULT_PATH
    )
    return layers.values.get(tuple(key.split(".")))


def _collect(function: Callable[..., Any], options: tuple[Callable[..., Any], ...]) -> Callable[..., Any]:
    """Return a command function that takes click's single values and hands on one `Options`."""
    names = {f.name for f in fields(Options)}

    def command(**given: Any) -> Any:
        ours = {name: given.pop(name) for name in list(given) if name in names}
        for name in ("runtime_dir", "state_dir", "pidfile"):
            if ours.get(name) is not None:
                ours[name] = ours[name].absolute()
        return function(options=Options(**ours), **given)

    wrapped: Callable[..., Any] = update_wrapper(command, function)
    for option in reversed(options):
        wrapped = option(wrapped)
    return wrapped
