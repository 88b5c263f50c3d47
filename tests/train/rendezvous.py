# SPDX-License-Identifier: Apache-2.0
"""Where the ranks of a test meet: at a port that no one else is given before the first of them listens.

A port that was free a moment ago is not enough: gloo's connections and the servers of other tests take such
ports by the dozen, and a rank that meets a stranger waits for minutes.
"""

from __future__ import annotations

import socket
from random import SystemRandom

# Linux gives none of these by itself: net.ipv4.ip_local_port_range begins at 32768.
_PORTS = range(20_000, 32_000)
_TRIES = 100


def rendezvous() -> dict[str, str]:
    """Return MASTER_ADDR and MASTER_PORT for ranks on this machine, another port at each call."""
    for port in SystemRandom().sample(_PORTS, _TRIES):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    raise AssertionError(f"none of {_TRIES} ports below {_PORTS.stop} is free")
