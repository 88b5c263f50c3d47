# SPDX-License-Identifier: Apache-2.0
"""How often Amazon's host may be asked for certificates, and which files it does not have.

A certificate is asked for before anything is proven, so whoever knows a topic's name can make us ask for
files that do not exist. He may use up his own share, and with many networks that of strangers; not the share
of those that have brought a genuine message. It asks nobody.
"""

from __future__ import annotations

import contextlib
import ipaddress
from collections import OrderedDict, deque
from collections.abc import Iterable

from spotwatch.errors import Unavailable
from spotwatch.rate_limits import networks

MINUTE = 60.0
MAX_FOR_NETWORK = 3
"""Within a minute, for the messages of one network."""
MAX_FOR_STRANGERS = 15
"""Within a minute, for all networks together that have brought no genuine message yet."""
MAX_FOR_KNOWN = 15
"""The same for those that have."""
MISSING_SECONDS = 120.0
"""How long a file that the host does not have is not asked for."""
_MAX_MISSING = 256
_MAX_KNOWN = 64
_HERE = "here"


class Asking:
    """Counts what is asked for.

    Args:
        known: networks that have brought a genuine message, the latest last.
    """

    def __init__(self, known: Iterable[str] = ()) -> None:
        self._known = OrderedDict.fromkeys(list(known)[-_MAX_KNOWN:])
        self._asked: deque[tuple[float, str]] = deque()
        self._missing: OrderedDict[str, float] = OrderedDict()

    @property
    def known(self) -> tuple[str, ...]:
        """Return the networks that have brought a genuine message, the latest last."""
        return tuple(self._known)

    def begin(self, url: str, peer: str, now: float) -> None:
        """Count that `url` is asked for.

        Args:
            url: of the certificate.
            peer: whose message names it.
            now: monotonic seconds.

        Raises:
            Unavailable: it must not be asked for now.
        """
        if self._missing.get(url, now) > now:
            raise Unavailable(f"there was no {url} a moment ago")
        while self._asked and now - self._asked[0][0] >= MINUTE:
            self._asked.popleft()
        network = _network(peer)
        is_known = network in self._known
        # Behind a proxy that is not asked whom it speaks for, all come from here.
        if network != _HERE and sum(one == network for _, one in self._asked) >= MAX_FOR_NETWORK:
            raise Unavailable(f"{MAX_FOR_NETWORK} certificates were asked for within a minute for {network}")
        most = MAX_FOR_KNOWN if is_known else MAX_FOR_STRANGERS
        if sum((one in self._known) == is_known for _, one in self._asked) >= most:
            raise Unavailable(f"{most} certificates were asked for within a minute")
        self._asked.append((now, network))

    def missing(self, url: str, now: float) -> None:
        """Remember that the host has no such file."""
        self._missing[url] = now + MISSING_SECONDS
        while len(self._missing) > _MAX_MISSING:
            self._missing.popitem(last=False)

    def vouch(self, peer: str) -> bool:
        """Say that `peer` has brought a genuine message; tell whether its network was a stranger's."""
        network = _network(peer)
        is_new = network not in self._known
        self._known[network] = None
        self._known.move_to_end(network)
        while len(self._known) > _MAX_KNOWN:
            self._known.popitem(last=False)
        return is_new


def _network(peer: str) -> str:
    """Return who counts as one: a network of which each part is cheap; this machine, if nobody knows."""
    with contextlib.suppress(ValueError):
        if not ipaddress.ip_address(peer).is_loopback:
            return networks(peer)[1]
    return _HERE
