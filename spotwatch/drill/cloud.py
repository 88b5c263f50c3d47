# SPDX-License-Identifier: Apache-2.0
"""The cloud of a rehearsed machine: emulated, with what points a daemon to it.

It announces nothing. A cloud that pushes its notices gets a secret that lives as long as its machine.
"""

from __future__ import annotations

import base64
import contextlib
import secrets
import socket
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from spotwatch.emulator import Emulator

# Who the replacement is: a notice must never concern it because it looks like the machine that is gone.
_REPLACEMENTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "aws": {"instance_id": "i-0fedcba9876543210"},
        "gcp": {"instance_id": 4520031799277581760},
        "azure": {"vm_id": "d7a1f2c0-5e0b-4b52-9b1e-3f1c8e0a7b11", "compute_name": "spot-vmss_1"},
        "digitalocean": {"droplet_id": 512345679, "hostname": "spot-trainer-02"},
    }
)


@contextlib.asynccontextmanager
async def emulated(
    name: str, secret_file: Path, *, is_replacement: bool = False, by_mail: bool = False
) -> AsyncIterator[tuple[Emulator, Mapping[str, str]]]:
    """Play the cloud `name`, and yield it with the variables that point a daemon to it.

    Args:
        name: one of `emulator.clouds()`.
        secret_file: made here, if the cloud pushes its notices.
        is_replacement: play another machine than the first one.
        by_mail: send whole mails where the cloud announces by mail.
    """
    knobs: dict[str, Any] = dict(_REPLACEMENTS[name]) if is_replacement else {}
    variables: dict[str, str] = {}
    if name == "digitalocean":
        secret = _make_secret(secret_file)
        listen = f"127.0.0.1:{_free_port()}"
        path = "/standard" if by_mail else ""
        knobs |= {"webhook_url": f"http://{listen}/webhook/digitalocean{path}", "secret": secret}
        knobs["by_mail"] = by_mail
        variables = {
            "SPOTWATCH_WEBHOOK__LISTEN": listen,
            "SPOTWATCH_WEBHOOK__SECRET_FILES": str(secret_file),
        }
    async with Emulator(name, **knobs) as cloud:
        yield cloud, {**cloud.environment, **variables}


def _make_secret(path: Path) -> str:
    secret = f"whsec_{base64.b64encode(secrets.token_bytes(32)).decode()}"
    path.touch(mode=0o600)
    path.write_text(f"{secret}\n", encoding="ascii")
    return secret


def _free_port() -> int:
    # A daemon does not tell which port it was given, and whoever pushes must know it beforehand.
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    return port
