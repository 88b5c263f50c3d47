# SPDX-License-Identifier: Apache-2.0
"""What a relay needs before it can run: settings that make sense, a key, and no other relay on its files.

It runs nothing.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from spotwatch.config import Settings
from spotwatch.config_places import STATE, is_writable
from spotwatch.config_secrets import read_secret
from spotwatch.errors import ConfigError, Denied, HandshakeError
from spotwatch.mail.mailbox_keys import SigningKey
from spotwatch.mail.model import Droplet
from spotwatch.providers._do_mailbox import SILENT_INTERVALS, SILENT_SECONDS
from spotwatch.relay.api import list_droplets
from spotwatch.relay.fleet import List
from spotwatch.safe_files import create_exclusively

LOCK = "relay.lock"
MAX_HEARTBEAT_SECONDS = SILENT_SECONDS / SILENT_INTERVALS
"""A Droplet that misses five signs of life calls the mailbox silent, and within ten minutes it should."""


def check(settings: Settings) -> None:
    """Refuse settings with which no letter could be written.

    Raises:
        ConfigError: everything that is missing, and what to write.
    """
    relay = settings.relay
    problems = []
    if not relay.mailbox:
        problems.append("relay.mailbox is not set; write spaces://BUCKET, s3://BUCKET/PREFIX or file:///DIR")
    if not relay.key_file:
        problems.append("relay.key_file is not set; make one with: spotwatch relay --make-key FILE")
    if not settings.webhook.listen:
        problems.append("webhook.listen is not set, so that no mail can come; write HOST:PORT")
    if not relay.token_file and not relay.droplet:
        problems.append("no Droplet is known; set relay.token_file, or write a [[relay.droplet]] for each")
    if not 1 <= relay.heartbeat_seconds <= MAX_HEARTBEAT_SECONDS:
        problems.append(
            f"relay.heartbeat_seconds is {relay.heartbeat_seconds:g}; write 1 to {MAX_HEARTBEAT_SECONDS:g}"
        )
    if problems:
        raise ConfigError(*problems)


def asking(settings: Settings) -> List | None:
    """Return what asks the API for all Droplets, each time with the token as it is then; None without one.

    Raises:
        ConfigError: the token cannot be read now.
    """
    relay = settings.relay
    if not relay.token_file:
        return None
    read_secret(relay.token_file)

    async def ask() -> tuple[Droplet, ...]:
        try:
            token = await asyncio.to_thread(read_secret, relay.token_file)
        except ConfigError as error:
            mend = "put a token that may read Droplets there, for this user alone (mode 0600)"
            raise Denied(f"relay.token_file: {error}", mend=mend) from error
        return await list_droplets(relay.api_url, token)

    return ask


def find_readable_state_dir(named: object, environ: Mapping[str, str]) -> Path | None:
    """Return the state directory that cannot be written, if it can be read: letters may wait in it.

    Args:
        named: `state_dir` of the configuration; None: it is not set.
        environ: of this process.
    """
    given = str(named) if named else environ.get("STATE_DIRECTORY", "").split(":", 1)[0]
    path = Path(given) if given else STATE
    return path if path.is_absolute() and os.access(path, os.R_OK | os.X_OK) and path.is_dir() else None


def disk_problem(state_dir: Path | None) -> str:
    """Return why nothing can be kept in `state_dir`; empty: it can, or none is there."""
    if state_dir is None or is_writable(state_dir):
        return ""
    return (
        f"state_dir {state_dir} is not writable: what waits there is sent, but nothing new can be kept; "
        "mend the disk, its mount or its owner, and start the relay again"
    )


def lock(state_dir: Path | None) -> ExitStack:
    """Make `state_dir` and keep every other relay out of it, until the returned stack is closed.

    One that cannot be written needs no lock: what two relays read there does not become less.

    Raises:
        ConfigError: another one is there, or it cannot be made.
    """
    stack = ExitStack()
    if state_dir is None or disk_problem(state_dir):
        return stack
    try:
        state_dir.mkdir(mode=0o750, parents=True, exist_ok=True)
        fd = os.open(state_dir / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        stack.callback(os.close, fd)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        stack.close()
        raise ConfigError(f"another relay runs on {state_dir}; stop it, or set another state_dir") from None
    except OSError as error:
        stack.close()
        raise ConfigError(f"state_dir {state_dir} cannot be used: {error.strerror}") from error
    return stack


def make_key(path: Path) -> str:
    """Write a new signing key to `path`, mode 0600, and return the public one.

    Raises:
        ConfigError: there is something at `path` already, or it cannot be written.
    """
    key = SigningKey.make()
    try:
        is_new = create_exclusively(path, f"{key.secret_text}\n".encode(), mode=0o600)
    except HandshakeError as error:
        raise ConfigError(str(error)) from error
    if not is_new:
        raise ConfigError(f"{path} exists; a key is never overwritten, choose another name")
    return key.public.text
