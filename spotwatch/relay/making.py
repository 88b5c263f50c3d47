# SPDX-License-Identifier: Apache-2.0
"""What a relay needs before it can run: settings that make sense, a key, and no other relay on its files.

It runs nothing.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from spotwatch.config import Settings
from spotwatch.config_secrets import read_secret
from spotwatch.errors import ConfigError, HandshakeError
from spotwatch.mail.mailbox_keys import SigningKey
from spotwatch.relay.api import list_droplets
from spotwatch.relay.fleet import List
from spotwatch.safe_files import create_exclusively

LOCK = "relay.lock"


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
    if relay.heartbeat_seconds < 1:
        problems.append(f"relay.heartbeat_seconds {relay.heartbeat_seconds:g} is too often; 1 or more")
    if problems:
        raise ConfigError(*problems)


def asking(settings: Settings) -> List | None:
    """Return what asks the API for all Droplets; None without a token.

    Raises:
        ConfigError: the token cannot be read.
    """
    relay = settings.relay
    if not relay.token_file:
        return None
    return partial(list_droplets, relay.api_url, read_secret(relay.token_file))


def lock(state_dir: Path | None) -> ExitStack:
    """Make `state_dir` and keep every other relay out of it, until the returned stack is closed.

    Raises:
        ConfigError: another one is there, or it cannot be made.
    """
    stack = ExitStack()
    if state_dir is None:
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
