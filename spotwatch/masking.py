# SPDX-License-Identifier: Apache-2.0
"""What of a foreign text may be shown: no secrets, no control characters, nothing endless.

It does not write anywhere; log, `--print-config` and `status` do. Standard library only.
"""

from __future__ import annotations

import unicodedata
from urllib.parse import urlsplit

MASK = "***"
MAX_SHOWN_CHARACTERS = 200

_SECRET_WORDS = frozenset(
    {"secret", "secrets", "token", "password", "passwd", "key", "authorization", "credential", "credentials"}
    | {"cookie", "signature"}
)
# Cc: control; Cf: bidi overrides and other invisible ones; Cs: lone surrogates, which no stream can encode;
# Zl and Zp: line ends that a viewer honours and `splitlines` too.
_UNSHOWN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def is_secret_name(name: str) -> bool:
    """Tell whether a value of this name is a secret: `webhook.secret` and `X-Api-Key`, not `secret_files`."""
    return name.replace("-", "_").replace(".", "_").lower().rsplit("_", 1)[-1] in _SECRET_WORDS


def escape(text: str, *, limit: int = MAX_SHOWN_CHARACTERS, keep: str = "") -> str:
    r"""Return `text` on one harmless line: `\n`, `\x1b`, `\u202e` instead of what they do.

    Args:
        text: from anywhere.
        limit: characters of `text` that are kept; the rest is counted.
        keep: control characters that may stay.
    """
    kept = "".join(
        c if c in keep or unicodedata.category(c) not in _UNSHOWN else _code(c) for c in text[:limit]
    )
    more = len(text) - limit
    return f"{kept}… (+{more} characters)" if more > 0 else kept


def mask_url(url: str) -> str:
    """Return scheme and host of `url` only: receivers put their tokens into path, query or user name."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return MASK
    if not parts.scheme or not host:
        return MASK
    host = f"[{host}]" if ":" in host else host
    place = host if port is None else f"{host}:{port}"
    return f"{parts.scheme}://{place}" + (f"/{MASK}" if parts.path.strip("/") or parts.query else "")


def _code(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")
