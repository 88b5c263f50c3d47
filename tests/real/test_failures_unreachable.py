# SPDX-License-Identifier: Apache-2.0
"""A store that refuses, or does not answer, when a run is to go on: an error, and never a fresh start."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator

import pytest

from tests.real.failures_bucket import Place
from tests.real.failures_runs import LOST_STEPS, Runs, Trainer
from tests.train.s3_proxy import FINE, Call, Fault, proxy_to

pytest_plugins = ["tests.real.failures_fixtures"]
pytestmark = [pytest.mark.real, pytest.mark.timeout(60, func_only=True)]

_SHORT = ("--patience-seconds", "1", "--tries", "2")
_ONCE = ("--patience-seconds", "0", "--tries", "2")
_DENIED = Fault(refuse=(403, "AccessDenied"))
_NOT_NOW = Fault(refuse=(503, "SlowDown"))
_TIMED_OUT = Fault(refuse=(400, "RequestTimeout"))


def _reads(what: str) -> Callable[[Call], bool]:
    return lambda call: call.method in ("GET", "HEAD") and call.path.endswith(what)


_FAULTS: dict[str, tuple[Fault, Callable[[Call], bool], str]] = {
    "403-all": (_DENIED, lambda _: True, "AccessDenied"),
    "403-LATEST": (_DENIED, _reads("/LATEST"), "AccessDenied"),
    "403-listing": (_DENIED, lambda call: "list-type" in call.query, "AccessDenied"),
    "403-manifest": (_DENIED, _reads("/manifest.json"), "AccessDenied"),
    "403-tensors": (_DENIED, _reads(".safetensors"), "AccessDenied|403"),
    "403-writes": (_DENIED, lambda call: call.method in ("PUT", "POST"), "AccessDenied"),
    "time-outs": (_TIMED_OUT, lambda _: True, "RequestTimeout"),
    "slow-down": (_NOT_NOW, lambda _: True, "SlowDown"),
    "no-answer": (Fault(lose_answer=True), lambda call: call.method == "GET", "Connection"),
}


def _expect_refusal(trainer: Trainer, place: Place, before: dict[str, bytes], why: str) -> None:
    assert trainer.end() == 1, trainer.text
    assert trainer.told().resumed is None, trainer.text
    last = trainer.text.rstrip().rpartition("StoreError: ")[2]
    assert any(sign in last for sign in why.split("|")), trainer.text
    assert "none can be used" not in trainer.text
    after = place.content()
    assert {key: body for key, body in after.items() if key.startswith("step-")} == before
    assert place.latest_step() == LOST_STEPS[-1]


def _steps(place: Place) -> dict[str, bytes]:
    return {key: body for key, body in place.content().items() if key.startswith("step-")}


@pytest.mark.parametrize("name", _FAULTS)
def test_refused(weed_lost: Place, runs: Runs, name: str) -> None:
    """Exit status 1, also where a fresh start was allowed; once the store answers, the run goes on."""
    fault, wanted, why = _FAULTS[name]
    before = _steps(weed_lost)
    with proxy_to(weed_lost.server.endpoint) as proxy:
        there = {"AWS_ENDPOINT_URL": proxy.url}
        proxy.fault = lambda call: fault if wanted(call) else FINE
        # The bodies of tensors are boto3's here: obstore asks for 20 s before it gives up.
        refused = runs.at(weed_lost, *_SHORT, **there, SPOTWATCH_UPLOADER="boto3", SPOTWATCH_ALLOW_FRESH="1")
        _expect_refusal(refused, weed_lost, before, why)
        proxy.fault = lambda _: FINE
        runs.expect(runs.at(weed_lost, *_SHORT, **there), resumed=LOST_STEPS[-1])


@pytest.mark.parametrize("any_place", ["weed", "rclone"], indirect=True)
def test_a_wrong_secret(lost: Place, runs: Runs) -> None:
    """The server's own 403, for everything; moto lets everybody in."""
    before = _steps(lost)
    options = {"AWS_SECRET_ACCESS_KEY": "wrong-secret-wrong", "SPOTWATCH_ALLOW_FRESH": "1"}
    refused = runs.start(lost.url, *_SHORT, environ=lost.environ | options)
    _expect_refusal(refused, lost, before, "SignatureDoesNotMatch|AccessDenied")
    assert "check the credentials" in refused.text
    runs.expect(runs.at(lost), resumed=LOST_STEPS[-1])


def test_connection_refused(weed_lost: Place, runs: Runs) -> None:
    """Nobody listens there."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        _expect_no_start(weed_lost, runs, taken, "Could not connect")


def test_connections_that_time_out(weed_lost: Place, runs: Runs) -> None:
    """A machine that answers nothing at all, as behind a firewall: whose patience ends first says so."""
    with _deaf() as listener:
        _expect_no_start(weed_lost, runs, listener, "Connect timeout|has not answered for")


def _expect_no_start(place: Place, runs: Runs, listener: socket.socket, why: str) -> None:
    before = _steps(place)
    endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
    options = {"AWS_ENDPOINT_URL": endpoint, "SPOTWATCH_ALLOW_FRESH": "1"}
    refused = runs.start(place.url, *_ONCE, environ=place.environ | options)
    _expect_refusal(refused, place, before, why)


@contextlib.contextmanager
def _deaf() -> Iterator[socket.socket]:
    # A full backlog: the kernel lets further connections wait without an answer.
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            caller = stack.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(listener.getsockname())
        yield listener
