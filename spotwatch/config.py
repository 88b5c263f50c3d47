# SPDX-License-Identifier: Apache-2.0
"""Every setting of the daemon, its default and its meaning.

The sections of providers are handed in by the caller, never imported; nothing is opened or created here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from spotwatch.policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """Where the flag file is, and whose it is."""

    path: str = "checkpoint-now"
    """Relative to the runtime directory, or absolute (`/tmp/checkpoint-now`)."""
    owner: str = ""
    """`uid:gid` or `user:group`; empty: the target's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSettings:
    """Who is to be told. Exactly one of unit, pidfile and process is set."""

    unit: str = ""
    """A systemd unit, stopped by systemd's own stop job."""
    pidfile: str = ""
    process: str = ""
    """A regular expression over the command line (arguments joined by one blank)."""
    user: str = ""
    """Name or uid whose processes count; empty: any for root, our own otherwise."""
    signal: str = "SIGTERM"
    leaves: Literal["auto", "always", "never"] = "auto"
    """Signal the local ranks below a launcher (torchrun, accelerate, deepspeed) instead of the launcher."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """Commands run beside an order, never in its way; argv lists, no shell."""

    on_notice: tuple[str, ...] = ()
    on_saved: tuple[str, ...] = ()
    on_missed: tuple[str, ...] = ()
    on_survived: tuple[str, ...] = ()
    on_notice_timeout_seconds: float = 30.0
    on_saved_timeout_seconds: float = 30.0
    on_missed_timeout_seconds: float = 30.0
    on_survived_timeout_seconds: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Announce:
    """One HTTP receiver to be told; a failure changes nothing else."""

    url: str = ""
    """Empty: read from `secret_file`."""
    preset: Literal["", "slack"] = ""
    template: str = ""
    """`string.Template` text with $provider, $kind, $event, $deadline, $why, $host; empty: our JSON."""
    headers: Mapping[str, str] = field(default_factory=dict)
    secret_file: str = ""
    """A file whose content is the URL (when `url` is empty) or else a Bearer token."""
    on: tuple[str, ...] = ("notice", "saved", "missed", "withdrawn", "survived")
    timeout_seconds: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Whether the cloud may be told to go ahead once the save is durable."""

    azure_approve: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """What a pod says of the container that we run in."""

    sidecar: Literal["", "native"] = ""
    """`native`: an init container that stays (Kubernetes 1.29). It is told to end once the trainer has ended,
    or alone, by a restart: its own end stops nobody. Empty: SIGTERM in a pod means that the pod goes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Http:
    """The listener for /metrics and health."""

    listen: str = "127.0.0.1:9475"


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """The listener for pushed notices; off by default."""

    listen: str = ""
    secret_files: tuple[str, ...] = ()
    """Files with one Standard Webhooks secret (`whsec_…`) each; several for rotation."""
    secret: str = ""
    """A secret by value, meant for `SPOTWATCH_WEBHOOK__SECRET`; never printed."""
    trust_relay: bool = False
    """A service whose signature covers a mail without DKIM proves it; it cannot know who wrote From."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses of reverse proxies, whose last `X-Forwarded-For` is taken for the peer's."""
    max_body_bytes: int = 1048576
    """1 MiB: the 256 KiB that are read of a mail, in whatever form a service posts it."""
    tolerance_seconds: float = 300.0
    """How far `webhook-timestamp` may be from our clock (Standard Webhooks 1.0.0: five minutes)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mail:
    """When a mail proves what it says, and how it is read."""

    trusted_domains: tuple[str, ...] = ("digitalocean.com",)
    """A DKIM signature counts when its domain (`d=`) is one of these or below one, and the sender's too."""
    account_addresses: tuple[str, ...] = ()
    """Where the account's mail goes; `me@` is `me+tag@` too, `me+tag@` is only itself.

    Empty: no mail is strong; a stranger may name a Droplet as ours is.
    """
    max_age_seconds: float = 10800.0
    """How old the signed date may be."""
    patterns_file: str = ""
    """TOML with more patterns; see `spotwatch/mail/patterns.toml`."""
    resolvers: tuple[str, ...] = ()
    """Name servers, `ADDRESS` or `ADDRESS:PORT`; empty: the system's."""
    single_droplet_account: bool = False
    """A mail that names no Droplet concerns this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayDroplet:
    """One Droplet that `spotwatch relay` tells, when the API is not asked."""

    id: int
    names: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Relay:
    """What `spotwatch relay` writes, and whom it knows."""

    mailbox: str = ""
    """`s3://BUCKET/PREFIX`, `spaces://BUCKET/PREFIX` or `file:///DIR`: a bucket of its own."""
    key_file: str = ""
    """The ed25519 key that signs, made by `spotwatch relay --make-key FILE`."""
    token_file: str = ""
    """A DigitalOcean API token that may read Droplets, to find their numbers by name."""
    api_url: str = "https://api.digitalocean.com"
    droplet: tuple[RelayDroplet, ...] = ()
    heartbeat_seconds: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """How the daemon writes its log."""

    format: Literal["auto", "console", "json"] = "auto"
    level: Literal["debug", "info", "warning", "error"] = "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The whole configuration, checked."""

    providers: tuple[str, ...] = ("auto",)
    runtime_dir: Path = Path()
    state_dir: Path | None = None
    """None: no place is writable, so nothing outlives a restart."""
    policy: Policy = field(default_factory=Policy)
    flag: Flag = field(default_factory=Flag)
    target: tuple[TargetSettings, ...] = ()
    hook: Hook = field(default_factory=Hook)
    announce: tuple[Announce, ...] = ()
    release: Release = field(default_factory=Release)
    pod: Pod = field(default_factory=Pod)
    http: Http = field(default_factory=Http)
    webhook: Webhook = field(default_factory=Webhook)
    mail: Mail = field(default_factory=Mail)
    relay: Relay = field(default_factory=Relay)
    log: Log = field(default_factory=Log)
    inbound: Mapping[str, Any] = field(default_factory=dict)
    """One instance of its own config class for each service that turns mail into requests, by name."""
    provider: Mapping[str, Any] = field(default_factory=dict)
    """One instance of its own config class for each provider by name."""
