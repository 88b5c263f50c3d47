# SPDX-License-Identifier: Apache-2.0
"""DigitalOcean's notice as a whole mail: its form, its signature, and the name server that shows the key.

The oracle is dkimpy with a resolver that asks the emulator's name server. It does not test what is read out
of such a mail.
"""

from __future__ import annotations

import asyncio
import email
import email.policy
from datetime import timedelta

import dkim
import dns.resolver
import pytest

from spotwatch.emulator import Emulator
from spotwatch.errors import ConfigError
from tests.emulator.test_digitalocean import SECRET, Webhook, webhook


def mailing(seen: Webhook) -> Emulator:
    """Return an emulator that posts mails there."""
    return Emulator("digitalocean", webhook_url=seen.url, secret=SECRET, by_mail=True)


async def is_proven(mail: bytes, resolver: str) -> bool:
    """Verify as a stranger would: the key comes from DNS."""
    host, _, port = resolver.rpartition(":")
    asking = dns.resolver.Resolver(configure=False)
    asking.nameservers = [host]
    asking.port = int(port)

    def look_up(name: bytes, timeout: float = 5) -> bytes | None:
        try:
            answer = asking.resolve(name.decode(), "TXT", lifetime=timeout)
        except dns.resolver.NXDOMAIN:
            return None
        return b"".join(answer[0].strings)

    return bool(await asyncio.to_thread(dkim.verify, mail, dnsfunc=look_up))


async def test_a_mail_is_posted_whole_and_proves_itself() -> None:
    """The request is signed as every push is, and its body by DKIM; one changed letter breaks that."""
    async with webhook() as seen, mailing(seen) as cloud:
        assert await cloud.push(at=cloud.clock.now() + timedelta(hours=2)) == 202
        [(headers, body)] = seen.got
        assert headers["content-type"] == "message/rfc822"
        assert headers["webhook-signature"].startswith("v1,")
        resolver = cloud.environment["SPOTWATCH_MAIL__RESOLVERS"]
        assert await is_proven(body, resolver)
        assert not await is_proven(body.replace(b"spot-trainer-01", b"spot-trainer-02"), resolver)


async def test_a_mail_names_the_droplet_by_name_alone() -> None:
    """As DigitalOcean's do: no number in it, a time with its zone, sent to the account."""
    async with webhook() as seen, mailing(seen) as cloud:
        at = cloud.clock.now() + timedelta(hours=2)
        await cloud.push(at=at)
        mail = email.message_from_bytes(seen.got[0][1], policy=email.policy.default)
        text = mail.get_content()
        assert mail["to"] == cloud.environment["SPOTWATCH_MAIL__ACCOUNT_ADDRESSES"]
        assert mail["from"].addresses[0].addr_spec == "support@digitalocean.com"
        assert f"Start: {at:%Y-%m-%d %H:%M:%S} UTC" in text
        assert "spot-trainer-01" in text.splitlines()
        assert cloud.environment["SPOTWATCH_PROVIDER__DIGITALOCEAN__NAMES"] == "spot-trainer-01"
        assert cloud.identity not in text


async def test_a_withdrawal_is_a_mail_too() -> None:
    """It speaks of the same Droplet, and is proven likewise."""
    async with webhook() as seen, mailing(seen) as cloud:
        await cloud.push(event="cancel")
        _, body = seen.got[0]
        assert b"Subject: Cancelled:" in body
        assert b"\r\nspot-trainer-01\r\n" in body
        assert await is_proven(body, cloud.environment["SPOTWATCH_MAIL__RESOLVERS"])


@pytest.mark.parametrize(("fault", "named"), [("neighbour", "599999999"), (None, "512345679")])
async def test_a_mail_may_be_about_another_droplet(fault: str | None, named: str) -> None:
    """What is said of a number that is not ours names that number."""
    async with webhook() as seen, mailing(seen) as cloud:
        if fault is not None:
            cloud.fault(fault)
        await cloud.push(droplet_id=None if fault else 512345679)
        _, body = seen.got[0]
        assert f"\r\n{named}\r\n".encode() in body
        assert b"spot-trainer-01" not in body


async def test_the_name_server_knows_its_one_name() -> None:
    """Others do not exist; and what is no question is left alone."""
    async with webhook() as seen, mailing(seen) as cloud:
        await cloud.push()
        _, body = seen.got[0]
        resolver = cloud.environment["SPOTWATCH_MAIL__RESOLVERS"]
        loop = asyncio.get_running_loop()
        host, _, port = resolver.rpartition(":")
        transport, _ = await loop.create_datagram_endpoint(
            asyncio.DatagramProtocol, remote_addr=(host, int(port))
        )
        for nonsense in (b"", b"\0" * 12, b"x" * 500):
            transport.sendto(nonsense)
        transport.close()
        assert not await is_proven(body.replace(b"s=emulator", b"s=somebody"), resolver)
        assert await is_proven(body, resolver)


@pytest.mark.parametrize("name", ["aws", "gcp", "azure"])
def test_other_clouds_send_no_mail(name: str) -> None:
    """They are asked."""
    with pytest.raises(ConfigError, match=f"{name} announces nothing by mail"):
        Emulator(name, by_mail=True)
