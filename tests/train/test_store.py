# SPDX-License-Identifier: Apache-2.0
"""What a URL means, and what is made of a server that speaks no S3."""

from __future__ import annotations

import importlib.util
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from spotwatch.errors import ConfigError, StoreError
from spotwatch.train.parts import Held
from spotwatch.train.store import open_store
from spotwatch.train.stores import s3_bucket
from spotwatch.train.stores.s3 import S3Store

from .conftest import S3


@pytest.fixture
def rude() -> Iterator[ThreadingHTTPServer]:
    """Return a server that answers what its `answer` says, with a length that may be a lie."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # the name is http.server's
            status, body, length = self.server.answer  # type: ignore[attr-defined]
            self.send_response(status)
            self.send_header("Content-Length", str(length))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize(
    ("status", "body", "length", "wanted"),
    [
        (403, b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>", 0, "AccessDenied"),
        (403, b"<html>a proxy says no</html>", 0, "cannot read"),
        (200, b"half of i", 100, "cannot read"),
    ],
)
def test_a_server_that_refuses_or_hangs_up(
    rude: ThreadingHTTPServer,
    s3: S3,
    status: int,
    body: bytes,
    length: int,
    wanted: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """403 and a torn body are trouble: never absence, never a short object."""
    monkeypatch.setattr(s3_bucket, "_PAUSE_SECONDS", 0.01)
    rude.answer = (status, body, length or len(body))  # type: ignore[attr-defined]
    endpoint = f"http://127.0.0.1:{rude.server_port}"
    store = open_store("s3://bucket/x", "run", {"AWS_ENDPOINT_URL": endpoint})
    with pytest.raises(StoreError, match=wanted) as caught:
        store.get("LATEST", most_bytes=1000)
    assert type(caught.value) is StoreError


@pytest.mark.parametrize(
    ("url", "environ", "wanted"),
    [
        ("", {}, "empty"),
        (" ", {}, "empty"),
        ("/a\0b", {}, "zero byte"),
        ("file:///a%00b", {}, "zero byte"),
        ("~nobody-of-that-name/x", {}, "write the path from / on"),
        ("ftp://bucket", {}, "no store for ftp://; have a path, file://, s3://, spaces://, gs://, az://"),
        ("gs:///x", {}, "names no bucket; write gs://"),
        ("az://key@bucket", {}, "only az://bucket/prefix; credentials belong"),
        ("C:\\runs", {}, "no store for c://"),
        ("file://host/x", {}, "three slashes"),
        ("file:relative", {}, "three slashes"),
        ("file:", {}, "three slashes"),
        ("s3://", {}, "names no bucket; write s3://bucket/prefix"),
        ("s3:bucket/x", {}, "names no bucket; write s3://bucket/prefix"),
        (
            "s3://bucket:9000/x",
            {},
            "'bucket:9000' can be no bucket; .* where the server is into the environment",
        ),
        ("s3://my bucket/x", {}, "'my bucket' can be no bucket"),
        ("s3://key:secret@[bucket/x", {}, "checkpoint URL s3://...: .*write a path, or s3://bucket/prefix"),
        ("s3:///x", {}, "names no bucket"),
        ("s3://bucket/../x", {}, "a bucket has no . and .."),
        ("gs://bucket/./x", {}, "a bucket has no . and .."),
        ("s3://key:secret@bucket", {}, "credentials belong"),
        ("spaces://", {}, "SPACES_BUCKET"),
        ("spaces://b", {"SPACES_KEY": "k"}, "SPACES_SECRET"),
        ("spaces://b", {"SPACES_KEY": "k", "SPACES_SECRET": "s"}, "SPACES_REGION"),
    ],
)
def test_urls_that_mean_nothing(url: str, environ: dict[str, str], wanted: str) -> None:
    """Each mistake gets its own words, without the secret."""
    with pytest.raises(ConfigError, match=wanted) as caught:
        open_store(url, "run", environ)
    assert "key:secret" not in str(caught.value)


def test_spaces_picks_its_endpoint() -> None:
    """The region makes the address; the bucket may come from the environment."""
    environ = {"SPACES_KEY": "k", "SPACES_SECRET": "s", "SPACES_REGION": "nyc3", "SPACES_BUCKET": "b"}
    store = open_store("spaces:///runs", "run", environ)
    assert store.url == "spaces://b/runs/run"
    assert isinstance(store, S3Store)
    assert store._bucket.client.meta.endpoint_url == "https://nyc3.digitaloceanspaces.com"


@pytest.mark.parametrize("url", ["gs://bucket/x", "az://container/x"])
def test_what_needs_obstore_says_so(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it the error is what to install."""
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        "spotwatch.train.store.find_spec", lambda name: None if name == "obstore" else find_spec(name)
    )
    with pytest.raises(ConfigError, match=r"pip install 'spotwatch\[fast\]'"):
        open_store(url, "run", {})


def test_a_rate_is_kept(s3: S3, tmp_path: Path) -> None:
    """An upload of four parts takes at least the time of three at the rate, wherever it goes."""
    body = Held(memoryview(bytes(4 * 5_300_000)), 5_300_000)
    for url in (str(tmp_path), s3.url):
        store = open_store(url, "paced", s3.environ, most_bytes_per_second=40_000_000)
        began = time.monotonic()
        store.upload("step/a", body, lambda _: None)
        assert time.monotonic() - began >= 3 * 5.3 / 40
