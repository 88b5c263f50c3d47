# SPDX-License-Identifier: Apache-2.0
"""A start whose store accepts and never answers: told to stop it leaves, else it gives up, whatever hangs."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from spotwatch.errors import StoreSilent
from spotwatch.train import attendance, attended, life
from spotwatch.train.registry import fetching

from .conftest import Make, train
from .s3_stand_in import Call, Reply, S3StandIn, refusal

pytestmark = pytest.mark.usefixtures("handlers_come_back", "made_up_keys")

REQUESTS: dict[str, Callable[[Call], bool]] = {
    "the probe's write": lambda call: call.method == "PUT" and "/.probe/" in call.key,
    "the probe's removal": lambda call: call.method == "DELETE" and "/.probe/" in call.key,
    "a look at LEASE": lambda call: call.method == "GET" and call.key.endswith("/LEASE"),
    "taking LEASE": lambda call: call.method == "PUT" and call.key.endswith("/LEASE"),
    "broken uploads": lambda call: "uploads" in call.query,
    "reading LATEST": lambda call: call.method == "GET" and call.key.endswith("/LATEST"),
    "the list": lambda call: "list-type" in call.query,
    "claiming LATEST": lambda call: call.method == "PUT" and call.key.endswith("/LATEST"),
    "the manifest": lambda call: call.key.endswith("/manifest.json"),
    "the size of a file": lambda call: call.method == "HEAD",
    "the bytes of a file": lambda call: call.method == "GET" and call.key.endswith(".safetensors"),
}


class Hanging:
    """What the server does: it keeps conditions, and leaves some requests without an answer.

    Args:
        server: whose faults these are.
    """

    def __init__(self, server: S3StandIn) -> None:
        self.wanted: Callable[[Call], bool] = lambda call: False
        self.then: Callable[[int], None] = lambda count: None
        """Called with the number of those that hang by now."""
        self.count = 0
        self.over = threading.Event()
        self._server = server
        server.fault = self

    def __call__(self, call: Call) -> Reply | None:
        """Hang, refuse, or let the server answer."""
        if self.wanted(call):
            self.count += 1
            self.then(self.count)
            self.over.wait(60)
            return refusal(503, "SlowDown")
        if call.method != "PUT":
            return None
        there = self._server.objects.get(call.key)
        version = f'"{self._server.generations.get(call.key, 1)}"'
        if (there is not None and "if-none-match" in call.headers) or (
            call.headers.get("if-match", version) != version
        ):
            return refusal(412, "PreconditionFailed")
        return None


class PlayClock:
    """Time that passes where a test says so."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.step_seconds = 0.0
        """So much passes with each look at the clock."""

    def __call__(self) -> float:
        """Return it."""
        self.seconds += self.step_seconds
        return self.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> PlayClock:
    """Return the clock by which silence is measured."""
    made = PlayClock()
    monkeypatch.setattr(attendance, "now", made)
    return made


@pytest.fixture
def hanging(server: S3StandIn, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hanging]:
    """Return the faults of a server; at the end whoever still waits for it is let go."""
    monkeypatch.setattr(fetching, "_JOIN_SECONDS", 0.05)
    made = Hanging(server)
    yield made
    made.over.set()


@pytest.fixture(params=["boto3", "obstore"])
def url(
    request: pytest.FixtureRequest, make: Make, environ: dict[str, str], server: S3StandIn, hanging: Hanging
) -> str:
    """Return where a run has saved at step 2, and may be gone on with."""
    environ.update({"AWS_ENDPOINT_URL": server.url, "SPOTWATCH_UPLOADER": request.param})
    ck, counter = make("s3://bucket/checkpoints", every_steps=2)
    train(ck, counter, 2)
    assert ck.exit_code == 0
    return "s3://bucket/checkpoints"


@pytest.mark.parametrize("what", REQUESTS)
def test_a_stop_is_obeyed_whatever_hangs(
    url: str, make: Make, hanging: Hanging, clock: PlayClock, what: str
) -> None:
    """SIGTERM leaves with 75, for the run is durable; with 76 where the store does not say so much."""

    def stop(count: int) -> None:
        if count == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            clock.seconds += attended.LEAVING_SECONDS

    hanging.wanted, hanging.then = REQUESTS[what], stop
    ck, counter = make(url, patience_seconds=1e9)
    with pytest.raises(SystemExit) as left:
        ck.resume()
    assert hanging.count
    assert left.value.code == ck.exit_code == (76 if what == "reading LATEST" else 75)
    assert counter.steps == []


def test_what_is_known_is_not_asked_for_again(
    url: str, make: Make, hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest was sound a moment ago: a stop has its 75 though the store answers nothing any more."""
    monkeypatch.setattr(life, "_RELEASE_SECONDS", 0.05)
    is_file = REQUESTS["the bytes of a file"]
    hanging.wanted = lambda call: bool(hanging.count) or is_file(call)
    hanging.then = lambda count: os.kill(os.getpid(), signal.SIGTERM) if count == 1 else None
    ck, _ = make(url, patience_seconds=1e9)
    with pytest.raises(SystemExit) as left:
        ck.resume()
    assert left.value.code == 75
    assert hanging.count <= 2  # the lease would have been given back


@pytest.mark.parametrize("what", REQUESTS)
def test_silence_is_borne_as_long_as_there_is_patience(
    url: str, make: Make, hanging: Hanging, clock: PlayClock, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    """It is said once what is waited for, and then what never came, whoever looked at the clock."""

    def pass_time(count: int) -> None:
        del count
        clock.step_seconds = 200.0

    hanging.wanted, hanging.then = REQUESTS[what], pass_time
    ck, counter = make(url, patience_seconds=600.0)
    with caplog.at_level(logging.WARNING), pytest.raises(StoreSilent, match=r"has not answered for \d+ s"):
        ck.resume()
    assert caplog.text.count("waiting for the store to") == 1
    assert "given up after 600 s" in caplog.text
    assert (ck.exit_code, counter.steps) == (76, [])
