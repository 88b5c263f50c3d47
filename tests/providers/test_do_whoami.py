# SPDX-License-Identifier: Apache-2.0
"""Who this Droplet is, and what becomes of a message while that is unknown.

The metadata service is a real one on loopback.
"""

from __future__ import annotations

import pytest

from spotwatch.errors import Malformed, Unavailable
from spotwatch.model import Evidence
from spotwatch.providers import Verdict
from spotwatch.providers._do_identity import parse_id
from tests.providers.do_shop import KEYS, OURS, Shop, until


async def test_a_push_before_the_identity_is_known_is_kept(shop: Shop) -> None:
    """It is answered 503, and counts as soon as it is clear whose it is."""
    shop.metadata.open.clear()
    desk = shop.open()
    row = {"event": "reclaim", "droplet_id": OURS}
    async with desk.provider:
        assert (await desk.push(row, webhook_id="a")) == Verdict(status=503, result="pending")
        other = {"event": "reclaim", "droplet_id": OURS + 1}
        assert (await desk.push(other, webhook_id="b")) == Verdict(status=503, result="pending")
        shop.metadata.open.set()
        await desk.provider._whoami.has_asked.wait()
        await until(lambda: desk.provider._droplet_id is not None)
        assert (await desk.only()).evidence is Evidence.STRONG
        assert (await desk.push(row, webhook_id="a")).result == "duplicate"
        assert (await desk.push(other, webhook_id="b")).result == "not_mine"


async def test_messages_that_wait_for_an_identity_are_bounded(shop: Shop) -> None:
    """A talkative sender does not fill the memory."""
    shop.metadata.status = 500
    desk = shop.open()
    async with desk.provider:
        results = [(await desk.reclaim()).result for _ in range(65)]
    assert results == ["pending"] * 64 + ["full"]


async def test_an_unknown_identity_is_not_ready_and_mended_by_itself(shop: Shop) -> None:
    """The signal fails with a mend until the metadata service answers."""
    shop.metadata.status = 500
    desk = shop.open()
    async with desk.provider:
        answer = await desk.ask()
        error = answer.failed["webhook"]
        assert isinstance(error, Unavailable)
        assert "/metadata/v1/id" in error.mend
        with pytest.raises(Unavailable):
            await desk.provider.identity()
        shop.metadata.status = 200
        await until(lambda: desk.provider._droplet_id is not None)
        assert (await desk.ask()).answered == {"webhook", "inbox"}


@pytest.mark.hostile(16)
async def test_no_secret_is_not_ready(shop: Shop) -> None:
    """Nothing can arrive, and whatever does is refused."""
    desk = shop.open(secrets=())
    async with desk.provider:
        error = (await desk.ask()).failed["webhook"]
        assert "openssl rand" in error.mend
        assert (await desk.reclaim()).status == 401


@pytest.mark.hostile(63)
@pytest.mark.parametrize(
    "text",
    ["abc", "-1", "0", "1" * 40, str(2**53 + 1), "<html>512345678</html>", "", "\ufeff512345678", "5 6",
     "\u0665\u0661", "1.0", "0x10"],
)  # fmt: skip
async def test_a_strange_id_is_no_identity(shop: Shop, text: str) -> None:
    """A captive page or a number out of bounds makes us nobody, not somebody else."""
    shop.metadata.keys["id"] = text
    desk = shop.open()
    async with desk.provider:
        assert "webhook" in (await desk.ask()).failed
        with pytest.raises(Malformed):
            await desk.provider.identity()


async def test_bytes_that_are_no_text_are_no_identity(shop: Shop) -> None:
    """Nothing but UTF-8 is believed."""
    shop.metadata.keys["id"] = b"\xff\xfe"
    desk = shop.open()
    async with desk.provider:
        assert "webhook" in (await desk.ask()).failed


@pytest.mark.parametrize("text", ["512345678", "512345678\n".strip(), "1", str(2**53)])
def test_plain_ids_are_read(text: str) -> None:
    """The number as it is."""
    assert parse_id(text) == int(text)


@pytest.mark.hostile(64)
async def test_a_redirect_is_not_followed(shop: Shop) -> None:
    """Another server does not tell us who we are."""
    shop.metadata.location = f"{shop.metadata.endpoint}/elsewhere"
    desk = shop.open()
    async with desk.provider:
        assert "webhook" in (await desk.ask()).failed
    assert "/elsewhere" not in shop.metadata.asked


@pytest.mark.hostile(66)
async def test_a_proxy_in_the_environment_is_not_used(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The metadata service is asked directly."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    desk = shop.open()
    async with desk.provider:
        assert await desk.provider.identity() == str(OURS)


async def test_an_outage_does_not_make_us_anybody_else(shop: Shop) -> None:
    """The identity once known stays while the service is silent."""
    desk = shop.open(identity_refresh_seconds=0.02)
    async with desk.provider:
        await desk.ask()
        shop.metadata.status = 500
        asked = len(shop.metadata.asked)
        await until(lambda: len(shop.metadata.asked) > asked + 1)
        assert (await desk.ask()).failed == {}
        assert (await desk.reclaim()).status == 202


@pytest.mark.hostile(65)
async def test_identity_is_asked_key_by_key_and_never_for_secrets(shop: Shop) -> None:
    """User-data, where people keep their keys, stays unread."""
    desk = shop.open()
    async with desk.provider:
        await desk.ask()
        known = desk.provider._whoami.identity
    assert set(shop.metadata.asked) == {f"/metadata/v1/{key}" for key in KEYS}
    assert known is not None
    assert (known.hostname, known.region, known.tags) == ("spot-trainer-01", "atl1", ("spot", "training"))
    assert (known.public_ip, known.private_ip) == ("203.0.113.7", "10.132.0.7")
    assert known.addresses == {"203.0.113.7", "10.132.0.7", "2001:db8::7"}


@pytest.mark.hostile(65)
async def test_a_private_droplet_without_hostname_knows_its_number(shop: Shop) -> None:
    """Missing and strange keys are empty; names wait until there is a hostname to compare with."""
    for key in ("interfaces/public/0/ipv4/address", "hostname"):
        del shop.metadata.keys[key]
    shop.metadata.keys["region"] = "<html>"
    desk = shop.open()
    async with desk.provider:
        assert (await desk.ask()).failed == {}
        known = desk.provider._whoami.identity
        assert known is not None
        assert (known.public_ip, known.region, known.hostname) == ("", "", "")
        assert (await desk.reclaim(name="spot-trainer-01")).result == "pending"
        assert (await desk.reclaim()).result == "accepted"


async def test_a_configured_id_needs_no_metadata(shop: Shop) -> None:
    """The number of the configuration is enough for messages that carry it."""
    shop.metadata.status = 500
    desk = shop.open(droplet_id=OURS)
    async with desk.provider:
        assert (await desk.ask()).failed == {}
        assert await desk.provider.identity() == str(OURS)
        assert (await desk.reclaim()).result == "accepted"


@pytest.mark.hostile(70)
async def test_a_configured_id_of_another_droplet_is_told(shop: Shop) -> None:
    """A setting that came with a copied image is not silent."""
    desk = shop.open(droplet_id=OURS + 1)
    async with desk.provider:
        await desk.provider._whoami.has_asked.wait()
        error = (await desk.ask()).failed["webhook"]
    assert isinstance(error, Malformed)
    assert str(OURS) in str(error)


@pytest.mark.parametrize(("text", "wanted"), [(str(OURS), True), ("<html>", False)])
async def test_detection_by_one_answer(shop: Shop, text: str, wanted: bool) -> None:
    """A number at the Droplet's path is a Droplet; a page is not."""
    shop.metadata.keys["id"] = text
    assert await shop.open().provider.detect() is wanted
    assert shop.metadata.asked == ["/metadata/v1/id"]


async def test_detection_says_no_when_nobody_answers(shop: Shop) -> None:
    """A refused connection is no Droplet, and no exception."""
    shop.metadata.endpoint = "http://127.0.0.1:1"
    assert await shop.open().provider.detect() is False
