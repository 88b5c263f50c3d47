# SPDX-License-Identifier: Apache-2.0
"""How a provider is made of the settings: its own section, and what it may know of the daemon.

It opens nothing, and does not decide which providers are wanted.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from spotwatch import providers
from spotwatch.clock import Clock
from spotwatch.clock_sync import is_clock_synced
from spotwatch.config import Settings
from spotwatch.config_secrets import locate_secret, read_secret, read_webhook_secrets
from spotwatch.errors import ConfigError
from spotwatch.providers import Context, Provider
from spotwatch.webhooks import parse_secret


def make_provider(
    settings: Settings,
    name: str,
    clock: Clock,
    *,
    state_dir: Path | None,
    environ: Mapping[str, str] = os.environ,
) -> Provider:
    """Return the provider called `name`, not entered yet.

    Args:
        settings: checked.
        name: one of `providers.names()`.
        clock: handed on.
        state_dir: where it may keep what must outlive a restart; None: it keeps and changes nothing.
        environ: the environment.

    Raises:
        ConfigError: there is none of that name, or it cannot work as configured; a secret that is none.
    """
    kind = providers.load(name)
    config = settings.provider.get(name)
    if config is None:
        config = kind.config_class()
    return kind(config, make_context(settings, clock, state_dir=state_dir, environ=environ))


def make_context(
    settings: Settings,
    clock: Clock,
    *,
    state_dir: Path | None,
    environ: Mapping[str, str] = os.environ,
) -> Context:
    """Return what a provider, and whoever else hears pushes, may know of the process.

    Args:
        settings: checked.
        clock: handed on.
        state_dir: where what must outlive a restart may be kept; None: nothing is kept or changed.
        environ: the environment.

    Raises:
        ConfigError: a secret is none.
    """
    is_listening = bool(settings.webhook.listen)
    secrets = read_webhook_secrets(settings.webhook) if is_listening else ()

    def read_named(file: str) -> str:
        try:
            return read_secret(locate_secret(file, environ))
        except ValueError as error:
            raise ConfigError(str(error)) from error

    return Context(
        clock=clock,
        runtime_dir=settings.runtime_dir,
        state_dir=state_dir,
        webhook_tolerance_seconds=settings.webhook.tolerance_seconds,
        webhook_secrets=tuple(parse_secret(secret) for secret in secrets),
        trust_relay=settings.webhook.trust_relay,
        mail=settings.mail,
        inbound=settings.inbound if is_listening else {},
        read_secret=read_named,
        environ=environ,
        is_clock_synced=is_clock_synced,
        policy_times={"ends_at": settings.policy.ends_at},
    )
