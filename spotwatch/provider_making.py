# SPDX-License-Identifier: Apache-2.0
"""How a provider is made of the settings: its own section, and what it may know of the daemon.

It opens nothing, and does not decide which providers are wanted.
"""

from __future__ import annotations

from pathlib import Path

from spotwatch import providers
from spotwatch.clock import Clock
from spotwatch.config import Settings
from spotwatch.config_secrets import read_webhook_secrets
from spotwatch.providers import Context, Provider
from spotwatch.webhooks import parse_secret


def make_provider(settings: Settings, name: str, clock: Clock, *, state_dir: Path | None) -> Provider:
    """Return the provider called `name`, not entered yet.

    Args:
        settings: checked.
        name: one of `providers.names()`.
        clock: handed on.
        state_dir: where it may keep what must outlive a restart; None: it keeps and changes nothing.

    Raises:
        ConfigError: there is none of that name, or it cannot work as configured; a secret that is none.
    """
    kind = providers.load(name)
    config = settings.provider.get(name)
    if config is None:
        config = kind.config_class()
    secrets = read_webhook_secrets(settings.webhook) if settings.webhook.listen else ()
    context = Context(
        clock=clock,
        runtime_dir=settings.runtime_dir,
        state_dir=state_dir,
        webhook_tolerance_seconds=settings.webhook.tolerance_seconds,
        webhook_secrets=tuple(parse_secret(secret) for secret in secrets),
        trust_relay=settings.webhook.trust_relay,
        mail=settings.mail,
        inbound=settings.inbound,
        policy_times={"ends_at": settings.policy.ends_at},
    )
    return kind(config, context)
