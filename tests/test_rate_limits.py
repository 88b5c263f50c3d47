# SPDX-License-Identifier: Apache-2.0
"""How often peers may ask, and that those who ask too often keep nobody else out."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spotwatch.rate_limits import TokenBuckets, networks


@pytest.mark.parametrize(
    ("peer", "expected"),
    [
        ("192.0.2.7", ("192.0.2.7/32", "192.0.2.0/24")),
        ("::ffff:192.0.2.7", ("192.0.2.7/32", "192.0.2.0/24")),
        ("2001:db8:1:2::3", ("2001:db8:1:2::/64", "2001:db8:1::/48", "2001:db8::/32")),
        ("fe80::1%eth0", ("fe80::/64", "fe80::/48", "fe80::/32")),
        ("", ("", "/")),
    ],
)
def test_the_networks_of_a_peer(peer: str, expected: tuple[str, ...]) -> None:
    """From its own address outwards; what is none stands for itself."""
    assert networks(peer) == expected


def test_buckets_refill_and_one_peer_does_not_empty_anothers() -> None:
    """Each peer has its own rate, an IPv6 /64 is one peer, and all share a total."""
    buckets = TokenBuckets(peer_rate=1, peer_burst=2, total_rate=1, total_burst=5, quiet_burst=0)
    assert [buckets.take("a", 0.0) for _ in range(3)] == [True, True, False]
    assert [buckets.take("2001:db8::1", 0.0), buckets.take("2001:db8::2", 0.0)] == [True, True]
    assert not buckets.take("2001:db8::3", 0.0)
    assert [buckets.take("b", 0.0), buckets.take("c", 0.0)] == [True, False]
    assert buckets.take("a", 1.0)


def test_buckets_remember_a_bounded_number_of_peers() -> None:
    """A stranger with many addresses does not fill the memory."""
    buckets = TokenBuckets()
    for n in range(9000):
        buckets.take(f"10.{n % 7}.{n // 256}.{n % 256}", float(n))
    assert len(buckets._levels) <= 4096


@pytest.mark.parametrize(
    "attacker",
    [
        lambda n: f"2001:db8:0:{n % 65536:x}::1",
        lambda n: f"2001:db8:{n % 65536:x}::1",
        lambda n: f"198.51.100.{n % 256}",
        lambda n: f"198.{n % 100}.100.1",
    ],
    ids=["a /48", "a /32", "a /24", "a hundred addresses"],
)
def test_a_thousand_requests_a_second_keep_nobody_out(attacker: Callable[[int], str]) -> None:
    """From wherever one attacker sends them, each request of a service that comes seldom is admitted."""
    buckets = TokenBuckets()
    admitted = []
    for n in range(20_000):
        now = n / 1000
        buckets.take(attacker(n), now)
        if n % 2000 == 1999:
            admitted.append(buckets.take("192.0.2.1", now))
    assert admitted == [True] * 10


def test_a_neighbour_that_is_refused_takes_nothing_from_others() -> None:
    """What one address asks beyond its own rate does not count for its network."""
    buckets = TokenBuckets()
    for n in range(20_000):
        buckets.take("198.51.100.1", n / 1000)
    assert [buckets.take("198.51.100.2", 20.0) for _ in range(60)] == [True] * 60


def test_who_authenticates_may_ask_ten_times_as_often() -> None:
    """The one mail that matters comes by the same address as all that a stranger mails to its service."""
    buckets = TokenBuckets()
    admitted = 0
    for n in range(2000):
        if buckets.take("192.0.2.1", n / 50):
            admitted += 1
            buckets.give_back("192.0.2.1")
    assert admitted == 2000
    for _ in range(100):
        buckets.give_back("192.0.2.1")
    assert sum(buckets.take("192.0.2.1", 40.0) for _ in range(100)) == 60
