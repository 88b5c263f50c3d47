# SPDX-License-Identifier: Apache-2.0
"""The thread that renews a lease, in real time and small: it ends with the lease, and outlives failures."""

from __future__ import annotations

import logging
import threading

import pytest

from spotwatch.errors import RunTaken, StoreError
from spotwatch.train.lease.lease import Lease, boot_seconds

from .lease_world import Shelf, claim, nothing, stranger, until


class TestThread:
    """The renewing thread, in real time and small."""

    @pytest.fixture
    def store(self) -> Shelf:
        """Return a store that compares and swaps."""
        return Shelf()

    @pytest.fixture
    def ours(self, store: Shelf) -> Lease:
        """Return a lease that is renewed all the time."""
        made = Lease(store, stranger("here"), ttl_seconds=60.0, renew_seconds=0.02)
        made.take(nothing, nothing)
        return made

    def test_renews_until_released(self, ours: Lease, store: Shelf) -> None:
        """The beat goes on by itself, twice started is once, and after the release there is no thread."""
        ours.start()
        ours.start()
        beat = store.claim().beat
        until(lambda: store.claim().beat > beat + 3)
        assert len(_threads()) == 1
        ours.release("finished")
        assert _threads() == []
        assert store.claim().released == "finished"

    def test_goes_on_through_trouble(
        self, ours: Lease, store: Shelf, caplog: pytest.LogCaptureFixture
    ) -> None:
        """An outage is one line in the log, not a loss, and renewing goes on after it."""
        caplog.set_level(logging.INFO)
        tries: list[str] = []

        def fail(deed: str) -> None:
            tries.append(deed)
            raise StoreError("out of reach")

        store.before = fail
        ours.start()
        until(lambda: len(tries) > 5)
        store.before = nothing
        beat = store.claim().beat
        until(lambda: store.claim().beat > beat and "renewed again" in caplog.text)
        ours.stop()
        assert caplog.text.count("out of reach") == 1
        ours.assert_held()

    def test_survives_a_defect(self, ours: Lease, store: Shelf, caplog: pytest.LogCaptureFixture) -> None:
        """What nobody foresaw is logged with its trace and does not end the renewing."""

        def stumble(deed: str) -> None:
            store.before = nothing
            raise ZeroDivisionError

        store.before = stumble
        beat = store.claim().beat
        ours.start()
        until(lambda: store.claim().beat > beat)
        ours.stop()
        assert "ZeroDivisionError" in caplog.text

    def test_notices_the_loss(self, ours: Lease, store: Shelf) -> None:
        """A thread that finds another holder tells it and ends; the next question is answered at once."""
        lost = threading.Event()
        ours.on_lost = lambda taken: lost.set()
        ours.start()
        store.write(claim(stranger("other"), generation=2))
        assert lost.wait(10)
        until(lambda: _threads() == [])
        with pytest.raises(RunTaken, match="other"):
            ours.assert_held()

    def test_a_store_that_hangs(
        self, ours: Lease, store: Shelf, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A renewal that hangs does not hold up the exit, and cannot bring the lease back afterwards."""
        monkeypatch.setattr("spotwatch.train.lease.lease._JOIN_SECONDS", 0.05)
        hangs, may_go = threading.Event(), threading.Event()

        def hang(deed: str) -> None:
            hangs.set()
            assert may_go.wait(10)
            raise StoreError("at last")

        store.before = hang
        ours.start()
        assert hangs.wait(10)
        ours.release("stopped")
        assert "hangs" in caplog.text
        may_go.set()
        store.before = nothing
        until(lambda: _threads() == [])
        beat = store.claim().beat
        with pytest.raises(StoreError, match="released"):
            ours.assert_held()
        assert store.claim().beat == beat

    def test_a_renewal_of_the_life_before(
        self, ours: Lease, store: Shelf, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One that hung when the run was taken anew neither undoes that nor says that the run is lost."""
        monkeypatch.setattr("spotwatch.train.lease.lease._JOIN_SECONDS", 0.05)
        hangs, may_go = threading.Event(), threading.Event()

        def hang(deed: str) -> None:
            if deed == "put_if":
                store.before = nothing
                hangs.set()
                assert may_go.wait(10)

        lost: list[RunTaken] = []
        ours.on_lost = lost.append
        store.before = hang
        ours.start()
        assert hangs.wait(10)
        assert ours.take(nothing, nothing) == 2
        may_go.set()
        until(lambda: _threads() == [])
        assert (lost, store.claim().generation) == ([], 2)
        assert ours.raise_to(7) == 8


def test_the_clock_goes_on() -> None:
    """The clock by default moves forwards."""
    before = boot_seconds()
    assert boot_seconds() >= before > 0


def _threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "spotwatch-lease"]
