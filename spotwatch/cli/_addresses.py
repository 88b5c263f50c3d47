# SPDX-License-Identifier: Apache-2.0
"""Where a listener of this machine is reached, and whether a text is an address of one.

It sends nothing.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from spotwatch.cli._options import Options, peek
from spotwatch.config_check import parse_listen
from spotwatch.errors import ConfigError
from spotwatch.masking import escape

# Who listens on every address is asked on loopback.
_ANY_ADDRESS = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - nothing is bound here


def address_of(options: Options, key: str, default: str) -> str | None:
    """Return `http://HOST:PORT` of the listener that the configuration names; None: it is off.

    Args:
        options: which configuration.
        key: the setting, such as `http.listen`.
        default: what counts where nothing is set.

    Raises:
        ConfigError: it is no address.
    """
    text = peek(options, key)
    try:
        listen = parse_listen(default if text is None else str(text))
    except ValueError as error:
        raise ConfigError(f"{key}: {error}") from error
    if listen is None:
        return None
    host = _ANY_ADDRESS.get(listen.host, listen.host)
    return f"http://{f'[{host}]' if ':' in host else host}:{listen.port}"


def checked_url(url: str, example: str) -> str:
    """Return what `--url` says if a web server could be there.

    Raises:
        ConfigError: it is no address of one.
    """
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in {"http", "https"} and bool(parts.hostname)
        _ = parts.port
    except ValueError:
        is_address = False
    if not is_address:
        raise ConfigError(f"--url {escape(url)!r} is no address; write it as {example}")
    return url
