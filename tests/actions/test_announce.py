# SPDX-License-Identifier: Apache-2.0
"""One HTTP receiver, played by a real server: what it gets, when it is asked again, and what never leaks."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from spotwatch.actions.announce import AnnounceTeller
from spotwatch.config import Announce
from spotwatch.errors import ActionError, ConfigError
from spotwatch.model import Kind, Notice
from tests.quiet import in_quiet_time, since, virtual_now

SECRET = "T000-B000-hush"
NOTICE = Notice(
    id="i-1",
    provider="aws",
    signal="instance-action",
    kind=Kind.RECLAIM,
    seen_at=datetime(2026, 11, 29, 12, 0, tzinfo=UTC),
    deadline=datetime(2026, 11, 29, 12, 2, tzinfo=UTC),
    detail='terminate "now" <b> & go',
)


class Receiver:
    """A server that answers as told and keeps what it got."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, dict[str, str]]] = []
        self.delay_seconds = 0.0
        self.got: list[tuple[dict[str, str], str]] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.Response:
        """Keep a request and answer it."""
        self.got.append((dict(request.headers), await request.text()))
        await asyncio.sleep(self.delay_seconds)
        status, headers = self.answers.pop(0) if self.answers else (200, {})
        return web.Response(status=status, headers=headers, text=f"said {SECRET}")

    def json(self) -> Any:
        """Return the last body."""
        return json.loads(self.got[-1][1])


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    """Serve on a free port of loopback."""
    one = Receiver()
    app = web.Application()
    app.router.add_post("/{tail:.*}", one.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    one.url = f"http://127.0.0.1:{runner.addresses[0][1]}/services/{SECRET}"
    yield one
    await runner.cleanup()


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    """Serve on a free port of loopback."""
    async with receiving() as one:
        yield one


def teller(receiver: Receiver | None = None, **settings: Any) -> AnnounceTeller:
    """Return a teller that does not wait long."""
    url = {} if receiver is None else {"url": receiver.url}
    return AnnounceTeller(Announce(**{**url, **settings}), backoff_seconds=0.01)


def keep(path: Path, text: str) -> str:
    """Write a secret and return where it is."""
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


async def test_without_a_template_the_notice_is_sent_whole(receiver: Receiver) -> None:
    """Everything that we know, as JSON of a version."""
    said = await teller(receiver).tell("saved", NOTICE, {"step": 7, "at": NOTICE.seen_at})
    assert said == "announced saved: HTTP 200"
    body = receiver.json()
    assert (body["version"], body["event"], body["facts"]["step"]) == (1, "saved", 7)
    assert Notice.from_json(body["notice"]) == NOTICE
    assert body["host"] == socket.gethostname()
    assert receiver.got[0][0]["Content-Type"] == "application/json"


async def test_slack_gets_its_text_escaped(receiver: Receiver) -> None:
    """A name in angle brackets would be a link or a mention to Slack."""
    await teller(receiver, preset="slack").tell("notice", NOTICE, {})
    (text,) = receiver.json().values()
    assert list(receiver.json()) == ["text"]
    assert text.startswith("*notice* on ")
    assert 'aws reclaim, deadline 2026-11-29T12:02:00.000Z. terminate "now" &lt;b&gt; &amp; go' in text
    await teller(receiver, preset="slack", template="$why!").tell("notice", NOTICE, {"why": "a<b"})
    assert receiver.json() == {"text": "a&lt;b!"}


async def test_values_in_a_json_template_are_escaped(receiver: Receiver) -> None:
    """A quote in a detail must not end the string that it is put into."""
    template = '{"msg": "$event $kind $provider $deadline $$5", "why": "$why"}'
    await teller(receiver, template=template, headers={"X-Team": "ml"}).tell("missed", NOTICE, {})
    assert receiver.json() == {
        "msg": "missed reclaim aws 2026-11-29T12:02:00.000Z $5",
        "why": NOTICE.detail,
    }
    assert receiver.got[0][0]["X-Team"] == "ml"
    assert receiver.got[0][0]["Content-Type"] == "application/json"


async def test_any_other_template_is_plain_text(receiver: Receiver) -> None:
    """As ntfy and its like want it; a notice without a time says so."""
    await teller(receiver, template="$why until $deadline").tell("notice", replace(NOTICE, deadline=None), {})
    assert receiver.got[0][1] == f"{NOTICE.detail} until unknown"
    assert receiver.got[0][0]["Content-Type"].startswith("text/plain")


async def test_a_secret_is_a_token_beside_a_url_and_the_url_without(
    receiver: Receiver, tmp_path: Path
) -> None:
    """Read at each telling, so that it can be rotated."""
    path = keep(tmp_path / "secret", "one\n")
    one = teller(receiver, secret_file=path)
    await one.tell("notice", NOTICE, {})
    keep(tmp_path / "secret", "two")
    await one.tell("notice", NOTICE, {})
    assert [headers["Authorization"] for headers, _ in receiver.got] == ["Bearer one", "Bearer two"]
    await teller(secret_file=keep(tmp_path / "url", f"{receiver.url}\n")).tell("notice", NOTICE, {})
    assert len(receiver.got) == 3
    assert "Authorization" not in receiver.got[2][0]


@pytest.mark.parametrize("content", ["", "two\nlines", "über", "ftp://x/y", "\0"])
async def test_a_secret_that_is_none_is_an_error_without_it(tmp_path: Path, content: str) -> None:
    """A header must not be broken in two, and the file is named, never its content."""
    path = keep(tmp_path / "secret", content)
    with pytest.raises(ActionError) as caught:
        await teller(secret_file=path).tell("notice", NOTICE, {})
    assert str(tmp_path) in str(caught.value)
    assert "lines" not in str(caught.value).replace("more than one line", "")
    assert "ftp" not in str(caught.value)


@pytest.mark.parametrize(
    ("answers", "requests", "result"),
    [
        ([(500, {}), (429, {}), (204, {})], 3, "HTTP 204"),
        ([(503, {"Retry-After": "0"}), (200, {})], 2, "HTTP 200"),
        ([(500, {}), (502, {}), (503, {}), (200, {})], 3, "was not announced: HTTP 503"),
        ([(403, {}), (200, {})], 1, "was not announced: HTTP 403"),
        ([(302, {"Location": "/elsewhere"}), (200, {})], 1, "was not announced: HTTP 302"),
    ],
)
async def test_what_may_pass_is_tried_again(
    receiver: Receiver, answers: list[tuple[int, dict[str, str]]], requests: int, result: str
) -> None:
    """Three times at most; a refusal and a redirect are final."""
    receiver.answers = answers
    try:
        said = await teller(receiver).tell("notice", NOTICE, {})
    except ActionError as error:
        said = str(error)
    assert result in said
    assert len(receiver.got) == requests
    assert SECRET not in said


@in_quiet_time
async def test_retry_after_is_heeded() -> None:
    """Up to five seconds; a date counts as none."""
    async with receiving() as receiver:
        date = "Sun, 29 Nov 2026 12:00:00 GMT"
        receiver.answers = [(429, {"Retry-After": "60"}), (503, {"Retry-After": date})]
        began = virtual_now()
        await teller(receiver).tell("notice", NOTICE, {})
        assert 5 <= since(began) < 6


@in_quiet_time
async def test_a_receiver_that_hangs_is_left() -> None:
    """Each attempt has its limit."""
    async with receiving() as receiver:
        receiver.delay_seconds = 10
        began = virtual_now()
        with pytest.raises(ActionError, match=r"no answer within 0.2 s"):
            await teller(receiver, timeout_seconds=0.2).tell("notice", NOTICE, {})
        assert 0.6 <= since(began) < 1
        assert len(receiver.got) == 3


async def test_a_receiver_that_refuses_is_named_by_nothing(receiver: Receiver) -> None:
    """Neither host, port nor path appear: the path is a secret."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with pytest.raises(ActionError) as caught:
            await teller(url=f"http://127.0.0.1:{port}/{SECRET}").tell("notice", NOTICE, {})
    said = str(caught.value)
    assert "ClientConnectorError: Connection refused" in said
    assert SECRET not in said
    assert str(port) not in said
    with pytest.raises(ActionError) as caught:
        await teller(url=f"http://{SECRET}.invalid/").tell("notice", NOTICE, {})
    assert SECRET not in str(caught.value)


async def test_the_environments_proxy_is_not_used(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The notice goes where it was sent to."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    assert "200" in await teller(receiver).tell("notice", NOTICE, {})


async def test_a_certificate_that_nobody_signed_is_refused(tmp_path: Path) -> None:
    """TLS is verified, and there is no switch."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command to make a certificate")
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    await asyncio.to_thread(
        subprocess.run,
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-keyout", str(key), "-out", str(certificate), "-days", "2", "-subj", "/CN=localhost"),
        ],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    one = Receiver()
    app = web.Application()
    app.router.add_post("/", one.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    try:
        with pytest.raises(ActionError, match="TLS certificate is not trusted"):
            await teller(url=f"https://localhost:{runner.addresses[0][1]}/").tell("notice", NOTICE, {})
    finally:
        await runner.cleanup()
    assert one.got == []


def test_what_cannot_be_announced_is_refused_at_the_start() -> None:
    """All at once, and without the URL."""
    settings = Announce(url=f"slack.com/{SECRET}", template="$hots $provider $Why", on=("notice", "rescued"))
    with pytest.raises(ConfigError) as caught:
        AnnounceTeller(settings)
    assert [problem.split(":")[0] for problem in caught.value.problems] == [
        "announce.url is no http(s) URL with a host",
        "announce.template",
        "announce.on",
    ]
    assert "unknown $hots, $Why; have $provider, $kind" in str(caught.value)
    assert "unknown rescued" in str(caught.value)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "set url, or secret_file"),
        ({"url": "http://"}, "no http"),
        ({"url": "http://x:99999/"}, "no http"),
        ({"url": "http://[::1/"}, "no http"),
        ({"url": "file:///etc/passwd"}, "no http"),
        ({"url": "http://x/", "template": "costs 5$"}, r"a \$ that begins no placeholder"),
    ],
)
def test_each_mistake_has_its_own_words(settings: dict[str, Any], message: str) -> None:
    """No address, no host, a port that is none, a dollar sign too many."""
    with pytest.raises(ConfigError, match=message):
        AnnounceTeller(Announce(**settings))


def test_a_receiver_hears_what_it_asked_for() -> None:
    """Everything, unless told otherwise."""
    assert teller(url="http://x/").occasions == {"notice", "saved", "missed", "withdrawn", "survived"}
    assert teller(url="http://x/", on=("missed",)).occasions == {"missed"}
    assert teller(url="http://x/").name == "announce"
