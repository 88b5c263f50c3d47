# SPDX-License-Identifier: Apache-2.0
"""Mailboxes in a directory, behind a web server and in a bucket: read if changed, whole, never elsewhere."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from spotwatch.errors import ConfigError, Denied, Malformed, ProviderError, Unavailable
from spotwatch.mail.mailbox_bucket import BucketObjects, bucket_of
from spotwatch.mail.mailbox_client import Fetched, HttpReader, open_reader
from spotwatch.mail.mailbox_form import MAX_OBJECT_BYTES
from spotwatch.mail.mailbox_writer import FileObjects, open_objects
from tests.quiet import serving

_KEYS = {"SPACES_KEY": "k", "SPACES_SECRET": "s", "SPACES_REGION": "nyc3"}
Handler = Callable[[web.Request], web.StreamResponse]


@asynccontextmanager
async def _web(handler: Handler) -> AsyncIterator[HttpReader]:
    async def answer(request: web.Request) -> web.StreamResponse:
        return handler(request)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with serving(app) as url:
        reader = HttpReader(f"{url}/box", request_seconds=5.0)
        try:
            yield reader
        finally:
            await reader.close()


async def _one(reader: HttpReader | BucketObjects, etag: str = "") -> Fetched | ProviderError:
    return (await reader.fetch({"a.json": etag}))["a.json"]


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "write s3://"),
        ("ftp://host/x", "write s3://"),
        ("s3://", "names no bucket"),
        ("spaces:///prefix", "names no bucket"),
        ("s3://key:secret@bucket/x", "no credentials in it"),
        ("s3://bucket/x?versionId=1", "no credentials in it"),
        ("spaces://bucket", "SPACES_KEY is not set"),
        ("file://host/dir", "three slashes"),
        ("file:///", "three slashes"),
        ("http://example.com/box", "use https"),
        ("https://user:pass@example.com/box", "nothing after it"),
        ("https://example.com/box?token=t", "nothing after it"),
    ],
)
def test_an_address_that_is_no_mailbox_is_refused(url: str, says: str) -> None:
    """Each says what to write instead, and no password of it is repeated."""
    with pytest.raises(ConfigError, match=says) as caught:
        open_reader(url, {})
    assert "pass" not in str(caught.value)
    assert "token" not in str(caught.value)


def test_only_what_can_be_written_to_is_a_relays_mailbox() -> None:
    """A web address can be read, and written by other means only."""
    with pytest.raises(ConfigError, match="have s3, spaces, file"):
        open_objects("https://example.com/box", {})


def test_the_bucket_of_checkpoints_is_never_taken_for_the_mailbox() -> None:
    """`SPACES_BUCKET` names where checkpoints are; whoever may write those must not write letters."""
    with pytest.raises(ConfigError, match="names no bucket"):
        bucket_of("spaces:///reclaims", {**_KEYS, "SPACES_BUCKET": "checkpoints"})
    bucket, prefix = bucket_of("spaces://mail/a/b/", _KEYS)
    assert (bucket.name, prefix) == ("mail", "a/b")
    assert bucket.options["endpoint_url"] == "https://nyc3.digitaloceanspaces.com"


def test_a_bucket_takes_the_credentials_that_it_is_given() -> None:
    """A mailbox's key may come from a file of its own, beside another one in the environment."""
    environ = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "eu-west-1"}
    bucket, _ = bucket_of("s3://mail", {**environ, "AWS_ENDPOINT_URL": "http://127.0.0.1:1"})
    assert bucket.options == {
        "endpoint_url": "http://127.0.0.1:1",
        "aws_access_key_id": "a",
        "aws_secret_access_key": "b",
        "region_name": "eu-west-1",
    }


async def test_a_directory_is_read_if_changed(tmp_path: Path) -> None:
    """A file that is as it was is not read again; one that was replaced is, and a missing one is no fault."""
    objects = open_objects(tmp_path.as_uri(), {})
    assert (await objects.fetch({"x/a.json": ""}))["x/a.json"] == Fetched(state="missing")
    await objects.put("x/a.json", b"one")
    first = (await objects.fetch({"x/a.json": ""}))["x/a.json"]
    assert isinstance(first, Fetched)
    assert (first.state, first.body) == ("new", b"one")
    assert (await objects.fetch({"x/a.json": first.etag}))["x/a.json"] == Fetched(
        state="same", etag=first.etag
    )
    await objects.put("x/a.json", b"two")
    second = (await objects.fetch({"x/a.json": first.etag}))["x/a.json"]
    assert isinstance(second, Fetched)
    assert second.body == b"two"


@pytest.mark.hostile(69)
async def test_a_directory_with_something_else_in_it(tmp_path: Path) -> None:
    """A link, a directory or a huge file in a letter's place is a problem, and nothing is read."""
    (tmp_path / "link.json").symlink_to("/etc/passwd")
    (tmp_path / "dir.json").mkdir()
    (tmp_path / "huge.json").write_bytes(b"x" * (MAX_OBJECT_BYTES + 1))
    found = await FileObjects(tmp_path).fetch({"link.json": "", "dir.json": "", "huge.json": ""})
    assert [type(one) for one in found.values()] == [Malformed, Malformed, Malformed]


async def test_a_web_server_is_asked_whether_it_has_changed() -> None:
    """The ETag goes back as it came, and 304 says that nothing is new."""
    asked: list[tuple[str, str]] = []

    def answer(request: web.Request) -> web.StreamResponse:
        etag = request.headers.get("If-None-Match", "")
        asked.append((request.path, etag))
        return web.Response(status=304) if etag else web.Response(body=b"one", headers={"ETag": '"e1"'})

    async with _web(answer) as reader:
        first = await _one(reader)
        assert first == Fetched(state="new", body=b"one", etag='"e1"')
        assert await _one(reader, '"e1"') == Fetched(state="same", etag='"e1"')
    assert asked == [("/box/a.json", ""), ("/box/a.json", '"e1"')]


@pytest.mark.hostile(62, 63, 64, 67)
@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (404, Fetched),
        (410, Fetched),
        (401, Denied),
        (403, Denied),
        (429, Unavailable),
        (500, Unavailable),
        (503, Unavailable),
        (301, Malformed),
        (302, Malformed),
        (304, Malformed),
        (204, Malformed),
        (418, Malformed),
    ],
)
async def test_what_a_web_servers_refusal_is(status: int, kind: type) -> None:
    """Each status has one meaning; a redirect is never followed, whoever sends it."""
    asked: list[str] = []

    def answer(request: web.Request) -> web.StreamResponse:
        asked.append(request.path)
        return web.Response(status=status, headers={"Location": "/elsewhere"})

    async with _web(answer) as reader:
        assert isinstance(await _one(reader), kind)
    assert asked == ["/box/a.json"]


@pytest.mark.hostile(62, 69)
async def test_a_body_that_is_too_long_is_not_read_to_its_end() -> None:
    """Ten megabytes instead of a letter cost 64 KiB."""
    async with _web(lambda _: web.Response(body=b"x" * 10_000_000)) as reader:
        found = await _one(reader)
    assert isinstance(found, Malformed)
    assert "more than" in str(found)


@pytest.mark.hostile(62)
async def test_a_web_server_that_says_nothing_is_given_up() -> None:
    """One that takes the connection and never answers holds up a poll once, not once for each object."""
    hanging = asyncio.Event()

    async def hang(_: web.Request) -> web.StreamResponse:
        await hanging.wait()
        return web.Response()

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", hang)
    async with serving(app) as url:
        reader = HttpReader(url, request_seconds=0.2)
        found = await reader.fetch({"a": "", "b": "", "c": ""})
        await reader.close()
        hanging.set()
    assert [type(one) for one in found.values()] == [Unavailable] * 3
    assert len({id(one) for one in found.values()}) == 1


@pytest.mark.hostile(62)
async def test_a_refused_connection_is_unavailable() -> None:
    """Nobody listens: that says nothing about letters."""
    reader = HttpReader("http://127.0.0.1:1/box")
    found = await _one(reader)
    await reader.close()
    assert isinstance(found, Unavailable)


@pytest.mark.hostile(66)
async def test_a_proxy_in_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mailbox is asked directly, whatever HTTP_PROXY says."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with _web(lambda _: web.Response(body=b"direct")) as reader:
        found = await _one(reader)
    assert isinstance(found, Fetched)
    assert found.body == b"direct"


def test_reading_the_clients_module_brings_no_boto3() -> None:
    """A daemon whose mailbox is a web address or a directory never loads boto3, nor cryptography's parts."""
    code = (
        "import sys, spotwatch.providers._do_mailbox\n"
        "from spotwatch.mail.mailbox_client import open_reader\n"
        "open_reader('file:///x', {}); open_reader('https://example.com/box', {})\n"
        "heavy = {'boto3', 'botocore', 'cryptography', 'torch'}\n"
        "print(sorted({n.split('.')[0] for n in sys.modules} & heavy))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
