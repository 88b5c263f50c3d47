# SPDX-License-Identifier: Apache-2.0
"""Which Droplets there are: the API asked page by page and nowhere else, the last good list kept."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from spotwatch.config import RelayDroplet
from spotwatch.errors import Denied, Malformed, ProviderError, Unavailable
from spotwatch.mail.model import Droplet
from spotwatch.relay import api
from spotwatch.relay.api import list_droplets, tell_apart
from spotwatch.relay.fleet import FILE, Fleet
from spotwatch.testing import FakeClock
from tests.quiet import serving
from tests.relay.account import PlayedApi

_TOKEN = "dop_v1_0123456789abcdef"


def _row(droplet_id: int, name: str, *addresses: str) -> dict[str, Any]:
    """Return a Droplet as the API describes one, with some of what nobody needs here."""
    return {
        "id": droplet_id,
        "name": name,
        "status": "active",
        "region": {"slug": "nyc3"},
        "networks": {
            "v4": [{"ip_address": one, "type": "public"} for one in addresses if ":" not in one],
            "v6": [{"ip_address": one, "type": "public"} for one in addresses if ":" in one],
        },
    }


Handler = Callable[[web.Request], web.StreamResponse]


@asynccontextmanager
async def _api(handler: Handler) -> AsyncIterator[str]:
    async def answer(request: web.Request) -> web.StreamResponse:
        return handler(request)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with serving(app) as url:
        yield url


async def test_all_pages_are_read() -> None:
    """Each page's `next` is followed with the token, and names and addresses are told apart over all."""
    asked: list[tuple[str, str, str]] = []

    def answer(request: web.Request) -> web.StreamResponse:
        asked.append((request.method, request.path_qs, request.headers["Authorization"]))
        if request.query.get("page") == "2":
            return web.json_response({"droplets": [_row(2, "Twin"), _row(3, "c", "10.0.0.2")], "links": {}})
        following = f"{request.scheme}://{request.host}/v2/droplets?per_page=200&page=2"
        page = {
            "droplets": [_row(1, "twin", "10.0.0.2", "2001:DB8::1")],
            "links": {"pages": {"next": following}},
        }
        return web.json_response(page)

    async with _api(answer) as url:
        found = await list_droplets(url, _TOKEN)
    assert asked == [
        ("GET", "/v2/droplets?per_page=200", f"Bearer {_TOKEN}"),
        ("GET", "/v2/droplets?per_page=200&page=2", f"Bearer {_TOKEN}"),
    ]
    assert found == (
        Droplet(droplet_id=1, hostname="twin", addresses=frozenset({"2001:db8::1"})),
        Droplet(droplet_id=2, hostname="Twin"),
        Droplet(droplet_id=3, hostname="c", names=frozenset({"c"})),
    )


@pytest.mark.hostile(64)
@pytest.mark.parametrize(
    "following",
    [
        "http://attacker.example/v2/droplets?page=2",
        "https://{host}/v2/droplets?page=2",
        "http://{host}@attacker.example/v2/droplets",
        "http://user@{host}/v2/droplets",
        "file:///etc/passwd",
        "//attacker.example/",
        "http://[",
        "/v2/droplets?page=2",
    ],
)
async def test_the_token_goes_to_no_other_host(following: str) -> None:
    """A next page anywhere else than at the configured address is refused before it is asked for."""
    asked = []

    def answer(request: web.Request) -> web.StreamResponse:
        asked.append(request.path_qs)
        link = following.format(host=request.host)
        return web.json_response({"droplets": [], "links": {"pages": {"next": link}}})

    async with _api(answer) as url:
        with pytest.raises(Malformed, match="another host"):
            await list_droplets(url, _TOKEN)
    assert asked == ["/v2/droplets?per_page=200"]


@pytest.mark.hostile(64, 67)
@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, Denied),
        (403, Denied),
        (404, Malformed),
        (301, Malformed),
        (302, Malformed),
        (429, Unavailable),
        (500, Unavailable),
        (503, Unavailable),
    ],
)
async def test_a_refusal_of_the_api_is_told_apart(status: int, kind: type[ProviderError]) -> None:
    """A bad token is the user's to mend, an outage passes, and a redirect is not followed."""
    asked = []

    def answer(request: web.Request) -> web.StreamResponse:
        asked.append(request.path)
        return web.Response(status=status, headers={"Location": "/v2/elsewhere"})

    async with _api(answer) as url:
        with pytest.raises(kind) as caught:
            await list_droplets(url, _TOKEN)
    assert asked == ["/v2/droplets"]
    assert _TOKEN not in str(caught.value)


@pytest.mark.hostile(63, 68)
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>sign in</html>",
        b"[]",
        b"null",
        b"{}",
        b'{"droplets": {}}',
        b'{"droplets": [1]}',
        b'{"droplets": [{"name": "x"}]}',
        b'{"droplets": [{"id": "5", "name": "x"}]}',
        b'{"droplets": [{"id": true, "name": "x"}]}',
        b'{"droplets": [{"id": -1}]}',
        b'{"droplets": [{"id": ' + b"9" * 40 + b"}]}",
        b'{"droplets": [], "droplets": []}',
        b"[" * 20_000,
    ],
)
async def test_an_answer_that_is_no_list_is_refused(body: bytes) -> None:
    """Half a list could make a name look unique, so one bad row spoils all of it."""
    async with _api(lambda _: web.Response(body=body, content_type="application/json")) as url:
        with pytest.raises(Malformed):
            await list_droplets(url, _TOKEN)


@pytest.mark.hostile(65)
@pytest.mark.parametrize(
    "networks",
    [
        None,
        [],
        "none",
        {},
        {"v4": None},
        {"v4": {}},
        {"v4": [1, {"ip_address": 5}, {"ip_address": "no"}], "v6": 7},
    ],
)
def test_a_droplet_without_addresses_is_one_all_the_same(networks: object) -> None:
    """What networks look like costs nobody his place in the list."""
    (found,) = tell_apart([{"id": 5, "name": "a", "networks": networks}])
    assert found == Droplet(droplet_id=5, hostname="a", names=frozenset({"a"}))


@pytest.mark.hostile(62)
async def test_an_answer_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """More bytes than a page can have, or pages than an account, are an error and fill no memory."""
    monkeypatch.setattr(api, "MAX_PAGE_BYTES", 1000)
    async with _api(lambda _: web.Response(body=b" " * 5000)) as url:
        with pytest.raises(Malformed, match="more than 1000 bytes"):
            await list_droplets(url, _TOKEN)

    def again(request: web.Request) -> web.StreamResponse:
        following = f"{request.scheme}://{request.host}/v2/droplets"
        return web.json_response({"droplets": [], "links": {"pages": {"next": following}}})

    async with _api(again) as url:
        with pytest.raises(Malformed, match="pages"):
            await list_droplets(url, _TOKEN)


@pytest.mark.hostile(62)
async def test_an_api_that_is_not_there_is_unavailable() -> None:
    """Nobody listens: that says nothing about Droplets."""
    with pytest.raises(Unavailable):
        await list_droplets("http://127.0.0.1:1", _TOKEN)


@pytest.mark.hostile(66)
async def test_a_proxy_in_the_environment_does_not_see_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """The API is asked directly, whatever HTTP_PROXY says."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with _api(lambda _: web.json_response({"droplets": [_row(1, "a")]})) as url:
        assert len(await list_droplets(url, _TOKEN)) == 1


_A = Droplet(droplet_id=1, hostname="a", names=frozenset({"a"}), addresses=frozenset({"10.0.0.1"}))
_B = Droplet(droplet_id=2, hostname="B", names=frozenset({"b"}))


async def test_a_fleet_without_an_api_is_known() -> None:
    """Configured Droplets are all there are, and their names are theirs alone."""
    fleet = Fleet(
        [RelayDroplet(id=1, names=(" Spot-1 ",), addresses=("10.0.0.1",))], None, FakeClock(), state_dir=None
    )
    await fleet.refresh()
    assert fleet.is_known
    assert fleet.droplets == (
        Droplet(droplet_id=1, names=frozenset({"spot-1"}), addresses=frozenset({"10.0.0.1"})),
    )
    assert fleet.sole == fleet.droplets[0]
    assert fleet.called("SPOT-1") == fleet.droplets
    assert fleet.called("spot-10") == ()


async def test_the_last_good_list_outlives_an_outage_and_a_restart(tmp_path: Path) -> None:
    """Nobody is forgotten because the API is away, and it is told that the list is old."""
    asked = PlayedApi(_A, _B)
    fleet = Fleet([], asked, FakeClock(), state_dir=tmp_path)
    assert not fleet.is_known
    assert fleet.sole is None
    await fleet.refresh()
    assert (fleet.is_known, fleet.problem, fleet.droplets) == (True, None, (_A, _B))
    asked.error = Unavailable("500")
    await fleet.refresh()
    assert (fleet.droplets, fleet.problem) == ((_A, _B), asked.error)
    after = Fleet([], asked, FakeClock(), state_dir=tmp_path)
    assert (after.is_known, after.droplets) == (True, (_A, _B))
    assert after.sole is None


async def test_a_droplet_that_is_gone_is_forgotten(tmp_path: Path) -> None:
    """What the API no longer lists is nobody's any more; its name may be another's soon."""
    asked = PlayedApi(_A, _B)
    fleet = Fleet([], asked, FakeClock(), state_dir=tmp_path)
    await fleet.refresh()
    asked.droplets = (_B,)
    await fleet.refresh()
    assert fleet.droplets == (_B,)
    assert Fleet([], asked, FakeClock(), state_dir=tmp_path).droplets == (_B,)


async def test_the_configuration_goes_before_the_api() -> None:
    """Of a Droplet that both name, what the user wrote counts."""
    fleet = Fleet([RelayDroplet(id=1, names=("mine",))], PlayedApi(_A, _B), FakeClock(), state_dir=None)
    await fleet.refresh()
    assert [(one.droplet_id, set(one.names)) for one in fleet.droplets] == [(1, {"mine"}), (2, {"b"})]


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"version": 2}', b'{"version": 1, "droplets": [{"id": 1}]}']
)
async def test_a_kept_list_that_is_damaged_is_not_believed(tmp_path: Path, body: bytes) -> None:
    """The fleet is unknown then, until the API answers."""
    (tmp_path / FILE).write_bytes(body)
    fleet = Fleet([], PlayedApi(_A), FakeClock(), state_dir=tmp_path)
    assert (fleet.is_known, fleet.droplets) == (False, ())
    assert "unreadable" in str(fleet.problem)
    await fleet.refresh()
    assert fleet.droplets == (_A,)
    assert json.loads((tmp_path / FILE).read_bytes())["version"] == 1


async def test_a_kept_list_is_readable_by_us_alone(tmp_path: Path) -> None:
    """Names and addresses of a fleet are nobody else's business."""
    await Fleet([], PlayedApi(_A), FakeClock(), state_dir=tmp_path).refresh()
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600
