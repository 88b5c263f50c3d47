# SPDX-License-Identifier: Apache-2.0
"""What a relay does and says when its token, its disk or its clock is not as it should be."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from spotwatch.clock import SystemClock
from spotwatch.errors import ConfigError, Denied
from spotwatch.relay.api import list_droplets, tell_apart
from spotwatch.relay.fleet import FILE
from spotwatch.relay.making import MAX_HEARTBEAT_SECONDS, asking, disk_problem, find_readable_state_dir
from spotwatch.relay.service import Relay
from tests.mail.letters import OURS
from tests.quiet import serving
from tests.relay.home import Home, page, running, until


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """Give the files of a relay for one Droplet."""
    return Home(tmp_path)


class _Account:
    """What the API answers, by the token that is good."""

    def __init__(self) -> None:
        self.good = "dop_v1_secret"
        self.asked: list[str] = []

    async def answer(self, request: web.Request) -> web.Response:
        """Answer one request."""
        self.asked.append(request.headers["Authorization"])
        if self.asked[-1] != f"Bearer {self.good}":
            return web.json_response({"id": "Unauthorized"}, status=401)
        return web.json_response({"droplets": [{"id": OURS, "name": "spot-1"}]})


@pytest.fixture
async def account(home: Home) -> AsyncIterator[_Account]:
    """Give an account whose API the relay asks."""
    made = _Account()
    app = web.Application()
    app.router.add_get("/v2/droplets", made.answer)
    async with serving(app) as url:
        home.droplets = ""
        home.relay = f"token_file = '{home.folder / 'token'}'\napi_url = '{url}'\n"
        yield made


def _listed_at(text: str) -> float:
    (found,) = re.findall(r"(?m)^spotwatch_relay_fleet_timestamp_seconds (\S+)$", text)
    return float(found)


async def test_a_token_that_is_replaced_is_used(home: Home, account: _Account) -> None:
    """The message says to replace it, and no restart is needed."""
    ask = asking(home.settings)
    assert ask is not None
    account.good = "dop_v1_new"
    with pytest.raises(Denied) as caught:
        await ask()
    assert "relay.token_file" in caught.value.mend
    assert "restart" in caught.value.mend
    home.secret("token", "dop_v1_new\n")
    assert [one.droplet_id for one in await ask()] == [OURS]
    (home.folder / "token").unlink()
    with pytest.raises(Denied, match="cannot be read"):
        await ask()


async def test_an_old_list_is_said(home: Home, account: _Account) -> None:
    """A token that has expired is a reason not to be ready, over a restart too; the list's age stays."""
    relay = home.open()
    async with running(relay):
        await until(lambda: relay.fleet.is_known and relay.http.is_bound)
        before = _listed_at((await page(relay.http.port, "/metrics"))[1])
        assert abs(before - time.time()) < 60
        assert relay.not_ready() == []
        account.good = "another"
        await relay._refresh()
        assert any("gets old: GET /v2/droplets: HTTP 401" in reason for reason in relay.not_ready())
    relay = home.open()
    async with running(relay):
        await until(lambda: relay.fleet.problem is not None and relay.http.is_bound)
        assert (await page(relay.http.port, "/readyz"))[0] == 503
        assert _listed_at((await page(relay.http.port, "/metrics"))[1]) == pytest.approx(before, abs=1e-3)
    path = home.state_dir / FILE
    path.write_text(path.read_text().replace('"listed_at": "2', '"listed_at": "1'))
    relay = home.open()
    assert any("unknown" in reason for reason in relay.not_ready())
    await relay.close()


def test_a_state_dir_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    """Of several that systemd names the first counts; without any it is the usual one."""
    assert find_readable_state_dir(None, {"STATE_DIRECTORY": f"{tmp_path}:/elsewhere"}) == tmp_path
    assert find_readable_state_dir(str(tmp_path / "missing"), {}) is None
    assert find_readable_state_dir("relative", {}) is None
    assert disk_problem(tmp_path) == disk_problem(None) == ""


@pytest.mark.parametrize(("is_synced", "shown"), [(True, "1.0"), (False, "0.0"), (None, "NaN")])
async def test_a_clock_that_is_not_set_is_said(home: Home, is_synced: bool | None, shown: str) -> None:
    """A relay in the wrong year proves no mail: it is not ready, and has a metric."""
    home.is_clock_synced = is_synced
    relay = home.open()
    async with running(relay):
        await until(lambda: relay.http.is_bound)
        assert f"spotwatch_relay_clock_synced {shown}\n" in (await page(relay.http.port, "/metrics"))[1]
        assert any("clock is not set" in reason for reason in relay.not_ready()) is (is_synced is False)


@pytest.mark.parametrize("seconds", [0, 0.5, MAX_HEARTBEAT_SECONDS + 1, 3600])
def test_a_heartbeat_is_often_enough_to_be_missed_within_ten_minutes(home: Home, seconds: float) -> None:
    """A Droplet waits for five intervals, and the page promises ten minutes."""
    home.relay = f"heartbeat_seconds = {seconds}\n"
    with pytest.raises(ConfigError, match="write 1 to 120"):
        home.open()


async def test_a_state_dir_that_is_no_place_is_a_reason_not_to_be_ready(home: Home) -> None:
    """What cannot be written to is said before anything has to be written."""
    home.state_dir.touch()
    settings = replace(home.settings, state_dir=home.state_dir)
    relay = Relay(settings, SystemClock(), environ={}, clock_sync=lambda: True)
    assert any("is not writable" in reason for reason in relay.not_ready())
    await relay.close()


async def test_a_large_fleet_does_not_hold_up_the_loop() -> None:
    """Names and addresses of thousands are told apart beside the loop, which goes on meanwhile."""
    rows: list[dict[str, Any]] = [
        {
            "id": 500_000_000 + number,
            "name": f"spot-{number}",
            "networks": {"v6": [{"ip_address": f"2604:a880:{one}::{number:x}"} for one in range(4)]},
        }
        for number in range(6000)
    ]
    body = json.dumps({"droplets": rows}).encode()

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=body, content_type="application/json")

    began = time.thread_time()
    told = tell_apart(rows)
    alone_seconds = time.thread_time() - began
    app = web.Application()
    app.router.add_get("/v2/droplets", answer)
    async with serving(app) as url:
        # Of this thread's own work: what others do to the machine meanwhile is not in it.
        began = time.thread_time()
        assert await list_droplets(url, "token") == told
        assert time.thread_time() - began < alone_seconds / 2


@pytest.mark.parametrize("with_token", [True, False])
async def test_whether_the_api_is_asked_is_shown(home: Home, with_token: bool) -> None:
    """A list that never came is a fault only where one is asked for."""
    if with_token:
        home.relay = f"token_file = '{home.folder / 'token'}'\napi_url = 'http://127.0.0.1:9'\n"
    relay = home.open()
    async with running(relay):
        await until(lambda: relay.http.port)
        _, text = await page(relay.http.port, "/metrics")
    assert f"spotwatch_relay_asks_api {float(with_token)}\n" in text
    assert math.isnan(_listed_at(text))
