# SPDX-License-Identifier: Apache-2.0
"""Secrets come from files that only we can read, from systemd credentials, or from the environment.

What a secret must look like is its user's business; nothing here prints one. Standard library only.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Mapping
from pathlib import Path

from spotwatch.config import Webhook
from spotwatch.config_layers import read_regular_file
from spotwatch.errors import ConfigError

MAX_SECRET_BYTES = 64 * 1024


def locate_secret(name: str, environ: Mapping[str, str]) -> str:
    """Return the absolute path of a secret file; a bare name is looked up among systemd's credentials.

    Raises:
        ValueError: it is missing, unreadable, not a file, or readable by others; says what to do.
    """
    credentials = environ.get("CREDENTIALS_DIRECTORY", "")
    path = Path(name)
    if not path.is_absolute():
        if not credentials:
            raise ValueError(
                f"{name!r} is relative; give an absolute path, or pass it with LoadCredential={name}:/path"
            )
        path = Path(credentials) / name
    try:
        facts = path.stat()
    except OSError as error:
        mend = "" if Path(name).is_absolute() else f"; add LoadCredential={name}:/path to the daemon's unit"
        raise ValueError(f"{path} cannot be read: {error.strerror}{mend}") from error
    if not stat.S_ISREG(facts.st_mode):
        raise ValueError(f"{path} is not a file")
    # systemd guards its credentials by the directory, and an ACL shows up in the mode's group bits.
    guarded = bool(credentials) and Path(credentials) in path.parents
    if not guarded and not is_private(facts, groups={os.getegid(), *os.getgroups()}):
        raise ValueError(
            f"{path} is accessible to others (mode {stat.S_IMODE(facts.st_mode):04o}); chmod 600 it "
            "(in Kubernetes: defaultMode: 0440 and a pod whose fsGroup is one of our groups)"
        )
    if not os.access(path, os.R_OK):
        raise ValueError(
            f"{path} cannot be read: Permission denied; give it to the daemon: chown {os.geteuid()}"
        )
    if facts.st_size == 0:
        raise ValueError(f"{path} is empty; write the secret into it")
    return str(path)


def is_private(facts: os.stat_result, *, groups: Collection[int]) -> bool:
    """Tell whether a secret file is its owner's alone, or root's and readable by a group of ours.

    The latter is how the kubelet hands out a Secret: root's, of the pod's fsGroup, and 0440 even if 0400 was
    asked for (kubernetes, pkg/volume/volume_linux.go, 2025). A file of our own is not trusted so: the group
    that it was given by default may be everybody's.

    Args:
        facts: of the file.
        groups: those that we are in.
    """
    shared = stat.S_IMODE(facts.st_mode) & 0o077
    return not shared or (shared == stat.S_IRGRP and facts.st_uid == 0 and facts.st_gid in groups)


def read_secret(path: str) -> str:
    """Return the content of a secret file, stripped.

    Raises:
        ConfigError: it cannot be read, is empty, or is no text.
    """
    try:
        text = read_regular_file(Path(path), limit=MAX_SECRET_BYTES).decode("utf-8").strip()
    except OSError as error:
        raise ConfigError(f"secret file {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"secret file {path} is no text") from error
    if not text:
        raise ConfigError(
            f"secret file {path} is empty; write the secret into it, or for a credential of systemd into the "
            "file that LoadCredential= names, and restart the daemon"
        )
    return text


def read_webhook_secrets(webhook: Webhook) -> tuple[str, ...]:
    """Return the texts of all secrets of the webhook listener, the files' first, in their order.

    Raises:
        ConfigError: as `read_secret`.
    """
    texts = [read_secret(path) for path in webhook.secret_files]
    return (*texts, webhook.secret.strip()) if webhook.secret.strip() else tuple(texts)
