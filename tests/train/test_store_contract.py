# SPDX-License-Identifier: Apache-2.0
"""One contract for every store; here with a directory and moto, in tests/real with other S3 servers."""

from __future__ import annotations

import itertools
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from spotwatch.errors import CheckpointCorrupt, StoreConflict, StoreMissing
from spotwatch.train.parts import Held, crc32
from spotwatch.train.store import Store, open_store
from spotwatch.train.stores.s3 import S3Store
from spotwatch.train.stores.s3_bucket import Bucket

from .conftest import S3

ODD_KEYS = ("step 1/a+b=c&d", "step-1/100%25.json", "step-1/é ü'~(1)*!;:@$,", "step-1/-", "step-1/a.b/c/d")


class StoreContract:
    """What every store does; a subclass has the fixtures `store`, an empty one, and `is_conditional`."""

    many_keys = 1100
    """More than a page of a listing has."""

    part_bytes = 5 * 2**20
    """The least that S3 takes."""

    def test_bytes_come_back(self, store: Store) -> None:
        """What is put is got, and is replaced by the next."""
        body = os.urandom(100_000)
        store.put("step/a", b"old")
        store.put("step/a", body)
        assert store.get("step/a", most_bytes=len(body)) == body
        assert store.read("step/a", most_bytes=len(body))[0] == body
        assert store.size_bytes("step/a") == len(body)

    def test_nothing_is_something(self, store: Store) -> None:
        """Objects without bytes are objects."""
        store.put("empty", b"")
        assert store.get("empty", most_bytes=0) == b""
        assert store.upload("large/empty", Held(memoryview(b""), self.part_bytes), lambda _: None) == ()
        assert store.size_bytes("large/empty") == 0
        store.read_into("large/empty", 0, memoryview(bytearray()))

    def test_missing_is_missing(self, store: Store) -> None:
        """An absent object is told apart from trouble, and deleting it is none."""
        with pytest.raises(StoreMissing):
            store.get("x/y", most_bytes=9)
        with pytest.raises(StoreMissing):
            store.read("x/y", most_bytes=9)
        with pytest.raises(StoreMissing):
            store.size_bytes("x/y")
        for size in (0, 3):
            with pytest.raises(StoreMissing):
                store.read_into("x/y", 0, memoryview(bytearray(size)))
        store.delete("x/y")

    def test_too_large_is_corrupt(self, store: Store) -> None:
        """A hostile pointer of gigabytes is not read into memory."""
        store.put("LATEST", b"x" * 100)
        with pytest.raises(CheckpointCorrupt):
            store.get("LATEST", most_bytes=99)

    def test_listing_and_deleting(self, store: Store) -> None:
        """All below the root is listed, with sizes, and deleted objects are gone."""
        assert list(store.list()) == []
        store.put("LATEST", b"1")
        store.put("step-1/a", b"22")
        assert sorted((e.key, e.size_bytes) for e in store.list()) == [("LATEST", 1), ("step-1/a", 2)]
        store.delete("step-1/a")
        assert [e.key for e in store.list()] == ["LATEST"]

    def test_odd_keys(self, store: Store) -> None:
        """Names that a URL or XML would have to quote come back as they are."""
        for key in ODD_KEYS:
            store.put(key, key.encode())
        assert sorted(e.key for e in store.list()) == sorted(ODD_KEYS)
        for key in ODD_KEYS:
            assert store.get(key, most_bytes=100) == key.encode()
            store.delete(key)
        assert list(store.list()) == []

    def test_more_than_a_page(self, store: Store) -> None:
        """1,001 objects and more are listed, each once."""
        keys = [f"step/{number}" for number in range(self.many_keys)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda key: store.put(key, b""), keys))
        assert sorted(e.key for e in store.list()) == sorted(keys)

    def test_a_listing_while_others_delete(self, store: Store) -> None:
        """What goes away during a listing is no trouble, and what stays is in it."""
        for number in range(30):
            store.put(f"step-{number}/a", b"1")
        listing = store.list()
        seen = {next(listing).key}
        for number in range(20):
            store.delete(f"step-{number}/a")
        seen |= {e.key for e in listing}
        assert seen >= {f"step-{number}/a" for number in range(20, 30)}
        assert len(list(store.list())) == 10

    def test_whether_it_is_conditional(self, store: Store, is_conditional: bool) -> None:
        """It tells what it is known to be, and leaves nothing behind."""
        assert store.is_conditional is is_conditional
        assert list(store.list()) == []

    def test_one_is_made_only_once(self, store: Store, is_conditional: bool) -> None:
        """An object that is there is not made again, and keeps its bytes."""
        if not is_conditional:
            pytest.skip("the store knows no conditions")
        version = store.put_if("LEASE", b"mine", None)
        with pytest.raises(StoreConflict):
            store.put_if("LEASE", b"yours", None)
        assert store.read("LEASE", most_bytes=9) == (b"mine", version)

    def test_only_what_was_read_is_replaced(self, store: Store, is_conditional: bool) -> None:
        """A version that is gone replaces nothing, also when the object is gone altogether."""
        if not is_conditional:
            pytest.skip("the store knows no conditions")
        first = store.put_if("LEASE", b"1", None)
        second = store.put_if("LEASE", b"2", store.read("LEASE", most_bytes=9)[1])
        with pytest.raises(StoreConflict):
            store.put_if("LEASE", b"3", first)
        assert store.read("LEASE", most_bytes=9) == (b"2", second)
        store.delete("LEASE")
        with pytest.raises(StoreConflict):
            store.put_if("LEASE", b"4", second)
        with pytest.raises(StoreMissing):
            store.get("LEASE", most_bytes=9)
        store.put_if("LEASE", b"5", None)

    def test_a_plain_put_is_another_version(self, store: Store, is_conditional: bool) -> None:
        """Who wrote without a condition is seen by who writes with one."""
        if not is_conditional:
            pytest.skip("the store knows no conditions")
        first = store.put_if("LATEST", b"1", None)
        store.put("LATEST", b"2")
        with pytest.raises(StoreConflict):
            store.put_if("LATEST", b"3", first)

    def test_large_bodies_go_in_parts(self, store: Store) -> None:
        """Three parts: their checksums, the progress, and every byte in its place."""
        body = os.urandom(2 * self.part_bytes + 1234)
        told: list[int] = []
        crcs = store.upload("step/a", Held(memoryview(body), self.part_bytes), told.append)
        assert crcs == tuple(
            crc32(body[at : at + self.part_bytes]) for at in range(0, len(body), self.part_bytes)
        )
        assert told == sorted(told)
        assert told[-1] >= len(body)
        assert store.size_bytes("step/a") == len(body)
        target = bytearray(len(body))
        spans = list(
            itertools.pairwise([0, 1, self.part_bytes // 2, self.part_bytes + 1, len(body) - 1, len(body)])
        )
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda s: store.read_into("step/a", s[0], memoryview(target)[s[0] : s[1]]), spans))
        assert target == body

    def test_one_part(self, store: Store) -> None:
        """A body no larger than a part has one checksum."""
        body = os.urandom(self.part_bytes)
        assert store.upload("step/a", Held(memoryview(body), self.part_bytes), lambda _: None) == (
            crc32(body),
        )
        assert store.get("step/a", most_bytes=len(body)) == body

    def test_an_upload_replaces(self, store: Store) -> None:
        """Of two uploads under one name the second is there."""
        for letter in (b"a", b"b"):
            body = memoryview(letter * (self.part_bytes + 1))
            store.upload("step/a", Held(body, self.part_bytes), lambda _: None)
        assert store.get("step/a", most_bytes=2 * self.part_bytes) == body

    def test_an_object_that_ends_too_early(self, store: Store) -> None:
        """What reaches beyond the end is no trouble with the store but a broken object."""
        store.put("step/a", b"12345")
        for begin, size in ((0, 6), (4, 2), (5, 1), (9, 1)):
            with pytest.raises(CheckpointCorrupt):
                store.read_into("step/a", begin, memoryview(bytearray(size)))

    def test_an_upload_that_is_ended(self, store: Store) -> None:
        """What `on_part` raises comes out as it is, and nothing is left."""

        class Enough(OSError):
            """One that a store might take for its own."""

        def on_part(sent_bytes: int) -> None:
            if sent_bytes:
                raise Enough

        for parts in (6, 1):
            body = memoryview(bytes(parts * self.part_bytes))
            with pytest.raises(Enough):
                store.upload("step/a", Held(body, self.part_bytes), on_part)
            assert list(store.list()) == []
        assert store.abort_uploads() == 0

    def test_threads_use_it_at_once(self, store: Store) -> None:
        """Eight threads write and read, each its own."""

        def use(number: int) -> bool:
            body = os.urandom(1000)
            store.put(f"step-{number}/a", body)
            return store.get(f"step-{number}/a", most_bytes=1000) == body

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(use, range(24)))


class RacingContract:
    """What a conditional store does when several want the same; a subclass has the fixture `store`."""

    def test_one_of_eight_makes_it(self, store: Store) -> None:
        """Eight make one object at the same time; one has made it, and its bytes are there."""
        gate = threading.Barrier(8)

        def make(number: int) -> bytes | None:
            gate.wait(10)
            try:
                store.put_if("LEASE", str(number).encode(), None)
            except StoreConflict:
                return None
            return str(number).encode()

        with ThreadPoolExecutor(8) as pool:
            made = [body for body in pool.map(make, range(8)) if body]
        assert made == [store.get("LEASE", most_bytes=9)]

    def test_no_count_is_lost(self, store: Store) -> None:
        """Four threads count in one object by read and put_if, and every count is there at the end."""
        store.put_if("COUNT", b"0 start", None)

        def count(who: int) -> None:
            done = 0
            while done < 10:
                body, version = store.read("COUNT", most_bytes=99)
                number = int(body.split()[0]) + 1
                try:
                    store.put_if("COUNT", f"{number} {who}".encode(), version)
                except StoreConflict:
                    continue
                done += 1

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(count, range(4)))
        assert store.get("COUNT", most_bytes=99).split()[0] == b"40"


_numbers = itertools.count()


@pytest.fixture
def small_s3(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the S3 server in this process take small parts and give small pages: it is slow."""
    monkeypatch.setattr("moto.s3.models.S3_UPLOAD_PART_MIN_SIZE", 1)
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "10")


class TestDirectory(StoreContract, RacingContract):
    """A directory."""

    many_keys = 50
    part_bytes = 50_000

    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        """Return an empty one."""
        return open_store((tmp_path / "a store").as_uri(), "run", {})

    @pytest.fixture
    def is_conditional(self) -> bool:
        """Return what it is known to be."""
        return True


class TestMoto(StoreContract):
    """An S3 server in this process, all by boto3; it does not race with itself as a real one would."""

    many_keys = 40
    part_bytes = 50_000

    @pytest.fixture
    def store(self, s3: S3, small_s3: None) -> Store:
        """Return an empty one."""
        bucket = Bucket("bucket", {"endpoint_url": s3.environ["AWS_ENDPOINT_URL"]})
        return S3Store(bucket, f"contract/run-{next(_numbers)}")

    @pytest.fixture
    def is_conditional(self) -> bool:
        """Return what it is known to be."""
        return True


class TestSpaces(TestMoto):
    """The same server, as DigitalOcean Spaces, large bodies by whatever is installed for them."""

    many_keys = 3

    @pytest.fixture
    def store(self, s3: S3, small_s3: None) -> Store:
        """Return an empty one."""
        return open_store(s3.spaces_url, f"contract-{next(_numbers)}", s3.environ)
