# SPDX-License-Identifier: Apache-2.0
"""How often a peer may ask: for its address, for the networks around it, and for all together.

It does not know what is asked, or whether a request was genuine: that costs more than to count it.
"""

from __future__ import annotations

import contextlib
import ipaddress
import math
from collections import OrderedDict

# What one owner is given at least, and what providers give to many; beside it, how many times as much as one
# peer all in it may send. An IPv6 /48 is one site's 65536 /64 (RFC 6177), a /32 one provider's; an IPv4 /24
# has many owners more often than one.
_PREFIXES = {4: ((32, 1.0), (24, 8.0)), 6: ((64, 1.0), (48, 2.0), (32, 8.0))}

# A service comes again after a minute, or ten.
_QUIET_SECONDS = 1.0
_GIVEN_BACK = 0.9


class TokenBuckets:
    """A rate limit for each peer, for each network around it, and for all of them.

    Args:
        peer_rate: requests per second that one peer may send, after a burst of `peer_burst`.
        peer_burst: requests that one peer may send at once.
        total_rate: the same for all peers together: what the loop can verify with ease.
        total_burst: requests that all peers together may send at once.
        quiet_rate: what peers may send beyond the total whose networks have sent nothing lately: many that
            use up the total must not keep out the one that comes seldom.
        quiet_burst: the same at once.
    """

    _MOST_NETWORKS = 4096

    def __init__(
        self,
        *,
        peer_rate: float = 10.0,
        peer_burst: float = 60.0,
        total_rate: float = 200.0,
        total_burst: float = 400.0,
        quiet_rate: float = 100.0,
        quiet_burst: float = 200.0,
    ) -> None:
        self._peer = (peer_rate, peer_burst)
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._total = _Bucket(total_rate, total_burst)
        self._quiet = _Bucket(quiet_rate, quiet_burst)

    def take(self, peer: str, now: float) -> bool:
        """Tell whether `peer` may go on at `now` (monotonic seconds), and count it if so.

        What is refused counts nowhere, so that it takes nothing from others in its network.
        """
        levels = {}
        is_quiet = True
        for network, times in _networks(peer):
            rate, burst = (times * one for one in self._peer)
            level, at = self._levels.pop(network, (burst, -math.inf))
            levels[network] = min(burst, level + rate * max(0.0, now - at))
            is_quiet = is_quiet and now - at >= _QUIET_SECONDS
        allowed = min(levels.values()) >= 1.0 and (
            self._total.take(now) or (is_quiet and self._quiet.take(now))
        )
        for network, level in levels.items():
            self._levels[network] = (level - allowed, now)
        while len(self._levels) > self._MOST_NETWORKS:
            self._levels.popitem(last=False)
        return allowed

    def give_back(self, peer: str) -> None:
        """Count a request of `peer` that was taken as a tenth of one: its sender has authenticated.

        A service has few addresses, and by them come the flood that a stranger mails and the one mail that
        matters.
        """
        for network, times in _networks(peer):
            if network in self._levels:
                level, at = self._levels[network]
                self._levels[network] = (min(times * self._peer[1], level + _GIVEN_BACK), at)
        self._total.give_back(_GIVEN_BACK)


class _Bucket:
    """So many a second, after a burst."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst = burst
        self._level = burst
        self._at = float("-inf")

    def take(self, now: float) -> bool:
        self._level = min(self._burst, self._level + self._rate * max(0.0, now - self._at))
        self._at = now
        if self._level < 1.0:
            return False
        self._level -= 1.0
        return True

    def give_back(self, amount: float) -> None:
        self._level = min(self._burst, self._level + amount)


def networks(peer: str) -> tuple[str, ...]:
    """Return what `peer` is part of, from itself outwards; at least two, whatever it is."""
    return tuple(network for network, _ in _networks(peer))


def _networks(peer: str) -> tuple[tuple[str, float], ...]:
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(peer)
        address = getattr(address, "ipv4_mapped", None) or address
        return tuple(
            (str(ipaddress.ip_network((address.packed, length), strict=False)), times)
            for length, times in _PREFIXES[address.version]
        )
    return (peer, 1.0), (f"{peer}/", 1.0)
