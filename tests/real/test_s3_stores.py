# SPDX-License-Identifier: Apache-2.0
"""The contract of stores over S3 servers that run as processes: SeaweedFS, rclone, moto; and a directory."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotwatch.errors import StoreError
from spotwatch.train.parts import Held
from spotwatch.train.store import Store
from spotwatch.train.stores import s3_bucket
from spotwatch.train.stores.bulk import choose_bulk
from spotwatch.train.stores.directory import DirectoryStore
from spotwatch.train.stores.pacing import Pace
from spotwatch.train.stores.s3 import S3Store
from spotwatch.train.stores.s3_bucket import Bucket
from tests.real.s3_servers import BUCKET, S3Server, start
from tests.train.s3_proxy import FINE, Call, Fault, proxy_to
from tests.train.test_store_contract import RacingContract, StoreContract

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]

_PART_BYTES = 5 * 2**20
_numbers = itertools.count()


@pytest.fixture(scope="module", params=["weed", "rclone", "moto"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Return each server in turn; it lives as long as the tests that want it."""
    with start(request.param, tmp_path_factory.mktemp(request.param)) as started:
        yield started


@pytest.fixture(scope="module")
def weed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Return the server that keeps what it holds on a disk and enforces conditions."""
    with start("weed", tmp_path_factory.mktemp("weed")) as started:
        yield started


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the pauses between tries be short."""
    monkeypatch.setattr(s3_bucket, "_PAUSE_SECONDS", 0.05)


def _empty_store(server: S3Server, **changed: str) -> S3Store:
    return S3Store(Bucket(BUCKET, server.options() | changed), f"real/run-{next(_numbers)}")


class TestServers(StoreContract):
    """Each S3 server, all by boto3 in this process."""

    @pytest.fixture
    def store(self, server: S3Server) -> Store:
        """Return an empty store."""
        return _empty_store(server)

    @pytest.fixture
    def is_conditional(self, server: S3Server) -> bool:
        """Return what the server is known to be."""
        return server.is_conditional

    def test_a_wrong_secret(self, server: S3Server) -> None:
        """Nobody is let in, and the error says why, however one asks."""
        if not server.checks_secrets:
            pytest.skip(f"{server.name} lets everybody in")
        store = _empty_store(server, aws_secret_access_key="wrong-secret-wrong")
        body = Held(memoryview(bytes(_PART_BYTES + 1)), _PART_BYTES)
        asks = (
            lambda: store.get("LATEST", most_bytes=9),
            lambda: store.size_bytes("LATEST"),
            lambda: store.put("LATEST", b"1"),
            lambda: store.upload("step/a", body, lambda _: None),
            lambda: list(store.list()),
            store.abort_uploads,
            lambda: store.is_conditional,
        )
        for ask in asks:
            with pytest.raises(StoreError, match=r"Access|Signature") as caught:
                ask()
            assert type(caught.value) is StoreError
            assert "wrong-secret" not in str(caught.value)

    def test_uploads_that_were_never_finished(self, server: S3Server) -> None:
        """Those of this run are removed, page by page, and no other's."""
        store = _empty_store(server)
        root = store.url.removeprefix(f"s3://{BUCKET}/")
        client = server.client()
        ids = {
            client.create_multipart_upload(Bucket=BUCKET, Key=f"{root}/step/{number % 7}")["UploadId"]
            for number in range(server.many_uploads)
        }
        other = client.create_multipart_upload(Bucket=BUCKET, Key=f"{root}0/step/a")["UploadId"]
        assert store.abort_uploads() == len(ids)
        left = client.list_multipart_uploads(Bucket=BUCKET, Prefix=root).get("Uploads", [])
        assert [upload["UploadId"] for upload in left] == [other]

    def test_a_slow_down_at_every_third_part(self, server: S3Server) -> None:
        """All parts arrive, and every byte is in its place."""
        parts = itertools.count(1)

        def fault(call: Call) -> Fault:
            return Fault(refuse=(503, "SlowDown")) if call.is_part and next(parts) % 3 == 0 else FINE

        body = os.urandom(6 * _PART_BYTES + 1)
        with proxy_to(server.endpoint) as proxy:
            proxy.fault = fault
            store = _empty_store(server, endpoint_url=proxy.url)
            store.upload("step/a", Held(memoryview(body), _PART_BYTES), lambda _: None)
        assert next(parts) > 7 + 2
        target = bytearray(len(body))
        store = S3Store(Bucket(BUCKET, server.options()), store.url.removeprefix(f"s3://{BUCKET}/"))
        store.read_into("step/a", 0, memoryview(target))
        assert target == body

    def test_a_lost_answer_to_the_last_request_of_an_upload(self, server: S3Server) -> None:
        """The parts were put together; asked once more, no server takes that for a failed upload."""
        body = os.urandom(_PART_BYTES + 1)
        with proxy_to(server.endpoint) as proxy:
            proxy.once(
                lambda call: call.method == "POST" and "uploadId" in call.query, Fault(lose_answer=True)
            )
            store = _empty_store(server, endpoint_url=proxy.url)
            store.upload("step/a", Held(memoryview(body), _PART_BYTES), lambda _: None)
            assert store.get("step/a", most_bytes=len(body)) == body

    def test_a_lost_answer_to_a_conditional_write(self, server: S3Server) -> None:
        """The second try meets our own first one, and that is success."""
        if not server.is_conditional:
            pytest.skip(f"{server.name} knows no conditions")
        with proxy_to(server.endpoint) as proxy:
            store = _empty_store(server, endpoint_url=proxy.url)
            proxy.once(lambda call: call.method == "PUT", Fault(lose_answer=True))
            version = store.put_if("LEASE", b"mine 1", None)
            proxy.once(lambda call: call.method == "PUT", Fault(lose_answer=True))
            store.put_if("LEASE", b"mine 2", version)
            assert store.get("LEASE", most_bytes=9) == b"mine 2"

    def test_a_server_that_goes_away_in_the_middle(self, server: S3Server) -> None:
        """An upload behind a dead network ends with an error that says so, and nothing looks whole."""
        with proxy_to(server.endpoint) as proxy:
            store = _empty_store(server, endpoint_url=proxy.url)
            gone = threading.Event()

            def fault(call: Call) -> Fault:
                if call.is_part:
                    gone.set()
                return Fault(lose_answer=gone.is_set())

            proxy.fault = fault
            with pytest.raises(StoreError, match="cannot write"):
                store.upload("step/a", Held(memoryview(bytes(20 * 2**20)), _PART_BYTES), lambda _: None)
        again = S3Store(Bucket(BUCKET, server.options()), store.url.removeprefix(f"s3://{BUCKET}/"))
        assert list(again.list()) == []
        again.abort_uploads()


class TestObstore(StoreContract):
    """Each S3 server, large bodies by obstore."""

    many_keys = 3
    """Listings are boto3's."""

    @pytest.fixture
    def store(self, server: S3Server) -> Store:
        """Return an empty store."""
        bucket, pace = Bucket(BUCKET, server.options()), Pace(None)
        bulk = choose_bulk(bucket, pace, {"SPOTWATCH_UPLOADER": "obstore"})
        return S3Store(bucket, f"real/run-{next(_numbers)}", bulk=bulk)

    @pytest.fixture
    def is_conditional(self, server: S3Server) -> bool:
        """Return what the server is known to be."""
        return server.is_conditional


class TestWeedRaces(RacingContract):
    """SeaweedFS, with several who want the same."""

    @pytest.fixture
    def store(self, weed: S3Server) -> Store:
        """Return an empty store."""
        return _empty_store(weed)


class TestDirectory(StoreContract, RacingContract):
    """A directory, with as many objects as a bucket."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        """Return an empty store."""
        return DirectoryStore(tmp_path / "run")

    @pytest.fixture
    def is_conditional(self) -> bool:
        """Return what it is known to be."""
        return True
