# SPDX-License-Identifier: Apache-2.0
"""Whether the daemon of this container turns: `python -m spotwatch.healthz`, for the image's HEALTHCHECK.

Standard library only, because it is run twice a minute beside a daemon that is meant to be small. It asks at
`http.listen`, as the environment or the configuration file says; a `--config` on the daemon's command line
it cannot know, so set `SPOTWATCH_CONFIG` instead. Whether the cloud answers is `/readyz`, and not asked.
"""

from __future__ import annotations

import http.client
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from spotwatch.config import Http
from spotwatch.config_layers import DEFAULT_PATH, read_layers
from spotwatch.errors import ConfigError

TIMEOUT_SECONDS = 3.0
_ANY_ADDRESS = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - nothing is bound here


def ask(environ: Mapping[str, str], *, default_path: Path = DEFAULT_PATH) -> tuple[bool, str]:
    """Return whether the daemon says that it turns, and a line that says why or why not.

    Args:
        environ: the environment, the daemon's own.
        default_path: the configuration file that need not exist.
    """
    try:
        layers, _, _, _ = read_layers(path=None, environ=environ, flags={}, default_path=default_path)
    except ConfigError as error:
        return False, "; ".join(error.problems)
    listen = str(layers.values.get(("http", "listen"), Http().listen))
    if not listen:
        return False, "http.listen is off: nobody can be asked; set it, or switch the health check off"
    host, colon, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not port.isdecimal():
        return False, f"http.listen: {listen!r} is no address; write HOST:PORT, as in 127.0.0.1:9475"
    return _get(_ANY_ADDRESS.get(host, host), int(port), listen)


def _get(host: str, port: int, listen: str) -> tuple[bool, str]:
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_SECONDS)
    try:
        connection.request("GET", "/healthz")
        reply = connection.getresponse()
        said = reply.read(200).decode("ascii", "replace").strip()
    except TimeoutError:
        return False, f"{listen}: no answer within {TIMEOUT_SECONDS:g} s, the daemon hangs"
    except OSError as error:
        return False, f"{listen}: {error.strerror or error}; does the daemon run, with the same http.listen?"
    except http.client.HTTPException as error:
        return False, f"{listen}: answers, but not as spotwatch does ({type(error).__name__})"
    finally:
        connection.close()
    return reply.status == http.client.OK, f"{listen}: {said or f'HTTP {reply.status}'}"


def main() -> None:
    """Print the line; exit 0 when the daemon turns and 1 when not (HEALTHCHECK knows no other status)."""
    is_well, line = ask(os.environ)
    sys.stdout.write(f"{line}\n")
    sys.exit(0 if is_well else 1)


if __name__ == "__main__":
    main()
