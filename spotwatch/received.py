# SPDX-License-Identifier: Apache-2.0
"""One request that somebody pushed to us, and what it is answered with.

It does not know any path, signature or source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """One request to a webhook, its size already limited, nothing parsed."""

    headers: Mapping[str, str]
    """Lower-case names; a header sent twice is absent, so that it cannot be chosen by an attacker."""
    body: bytes
    peer: str = ""
    path: str = ""
    """What follows `/webhook/<provider>/`, as it was sent; empty: nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What to answer to a webhook request."""

    status: int
    """HTTP: 2xx accepted, duplicate or not mine; 401 unsigned; 4xx permanent; 503 temporary."""
    result: str
    """The metric label: accepted, duplicate, not_mine, ignored, unsigned, malformed, replayed, full."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """What else the answer needs, such as the challenge that makes a relay send its password."""
    why: str = field(default="", compare=False)
    """For our own log, said once; the peer never sees it."""
    is_vouched: bool = field(default=False, compare=False)
    """Whether the sender has authenticated: a service hands on what many others write."""
