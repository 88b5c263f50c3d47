# SPDX-License-Identifier: Apache-2.0
"""The daemon with no configuration, beside a cloud at the address where clouds are: it finds it and reacts.

Only the directories are named, so that nothing of this machine is touched.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.real.namespace import ADDRESS, Namespace, wait_until

pytestmark = [pytest.mark.real, pytest.mark.timeout(60)]

_NOTICE_AFTER_SECONDS = 8.0
"""Late enough for the daemon to be watching by then, on a slow machine too."""
_START_SECONDS = 7.0
"""Two Pythons that start, and detection, which has 2 s."""
_INTERVAL_SECONDS = 1.0
_ALLOWANCE_SECONDS = 2.0
_KEY = b"0123456789abcdef0123456789abcdef"
_HOOK = "127.0.0.1:9476"


class _Watch:
    """One daemon in the namespace, and what it wrote."""

    def __init__(self, namespace: Namespace, folder: Path, **settings: str) -> None:
        self._namespace = namespace
        self.runtime_dir = folder / "run"
        self._log = folder / "daemon.log"
        self._process = namespace.start(
            "spotwatch",
            "run",
            log=self._log,
            environment={
                "SPOTWATCH_RUNTIME_DIR": str(self.runtime_dir),
                "SPOTWATCH_STATE_DIR": str(folder / "state"),
                **settings,
            },
        )

    def is_ready(self) -> bool:
        """Tell whether each cloud found has answered."""
        assert self._process.poll() is None, self.log
        return self._namespace.request("http://127.0.0.1:9475/readyz")[0] == 200

    @property
    def log(self) -> str:
        """Return what the daemon has logged."""
        return self._log.read_text(errors="replace")

    def order(self) -> Mapping[str, Any]:
        """Return the order in force; an empty one when there has been none."""
        path = self.runtime_dir / "order.json"
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"do": "none"}
        return found

    def has_ordered(self) -> bool:
        """Tell whether the trainer is told to do something."""
        return bool(self.order()["do"] != "none")


def _play(namespace: Namespace, folder: Path, cloud: str, *options: str) -> float:
    """Start `cloud` at the metadata address and return when it began to listen."""
    namespace.start(
        "spotwatch",
        "emulate",
        cloud,
        *("--host", ADDRESS, "--port", "80"),
        *options,
        log=folder / "cloud.log",
    )
    wait_until(lambda: namespace.is_listening(80), 10, f"{cloud} to be played")
    return time.monotonic()


def _notice_options() -> tuple[str, ...]:
    return ("--notice-after", f"{_NOTICE_AFTER_SECONDS:g}s", "--window", "60s")


@pytest.mark.parametrize("cloud", ["aws", "gcp", "azure"])
def test_a_cloud_is_found_and_its_notice_obeyed(namespace: Namespace, tmp_path: Path, cloud: str) -> None:
    """From nothing but the network the right cloud is found, and its reclaim becomes an order in a poll."""
    played_at = _play(namespace, tmp_path, cloud, *_notice_options())
    watch = _Watch(namespace, tmp_path)
    wait_until(watch.is_ready, _START_SECONDS, "readiness")
    assert not watch.has_ordered()
    notice_at = played_at + _NOTICE_AFTER_SECONDS
    limit = notice_at - time.monotonic() + _INTERVAL_SECONDS + _ALLOWANCE_SECONDS
    wait_until(watch.has_ordered, limit, f"an order within a poll of the notice\n{watch.log}")
    order = watch.order()
    assert order["provider"] == cloud
    flag, draining = watch.runtime_dir / "checkpoint-now", watch.runtime_dir / "draining"
    if order["do"] == "stop":
        wait_until(draining.exists, 2, "draining, beside a stop")
    else:
        assert flag.exists()
        assert not draining.exists()


def test_a_droplet_knows_itself_and_believes_only_what_names_it(namespace: Namespace, tmp_path: Path) -> None:
    """A Droplet's metadata has no signal: its notice is pushed, signed, and must name this Droplet."""
    _play(namespace, tmp_path, "digitalocean")
    secret = "whsec_" + base64.b64encode(_KEY).decode()
    watch = _Watch(namespace, tmp_path, SPOTWATCH_WEBHOOK__LISTEN=_HOOK, SPOTWATCH_WEBHOOK__SECRET=secret)
    wait_until(watch.is_ready, _START_SECONDS, "readiness: identity known, listener bound")
    droplet = int(namespace.request(f"http://{ADDRESS}/metadata/v1/id")[1])

    assert _push(namespace, "msg_unsigned", droplet, key=b"x" * 32) == 401
    assert 200 <= _push(namespace, "msg_neighbour", droplet + 1) < 300
    assert not watch.has_ordered()

    assert 200 <= _push(namespace, "msg_ours", droplet) < 300
    wait_until(watch.has_ordered, _INTERVAL_SECONDS + _ALLOWANCE_SECONDS, "an order after the push")
    order = watch.order()
    assert (order["provider"], order["do"]) == ("digitalocean", "flush")
    assert (watch.runtime_dir / "checkpoint-now").exists()


@pytest.mark.parametrize(
    "target", [("DROP",), ("REJECT", "--reject-with", "tcp-reset")], ids=["silence", "refusal"]
)
def test_a_notice_given_during_an_outage_is_obeyed_at_once_after_it(
    namespace: Namespace, tmp_path: Path, target: tuple[str, ...]
) -> None:
    """Cut off, nothing is ordered; the first poll begun after recovery finds the notice."""
    played_at = _play(namespace, tmp_path, "aws", *_notice_options())
    watch = _Watch(namespace, tmp_path)
    wait_until(watch.is_ready, _START_SECONDS, "readiness")
    # Incoming only: what is cut off is the service, not the daemon's way to ask.
    cut = ("INPUT", "-d", ADDRESS, "-p", "tcp", "--dport", "80", "-j", *target)
    namespace.iptables("-A", *cut)
    came_at = played_at + _NOTICE_AFTER_SECONDS + 2
    wait_until(lambda: time.monotonic() > came_at, 20, "the notice to be there, unseen")
    assert not watch.has_ordered()
    namespace.iptables("-D", *cut)
    # A poll in flight has 1 s to fail and the next begins after two intervals at most.
    wait_until(watch.has_ordered, 1 + 2 * _INTERVAL_SECONDS + _ALLOWANCE_SECONDS, f"the order\n{watch.log}")
    assert watch.order()["provider"] == "aws"


def _push(namespace: Namespace, message: str, droplet: int, *, key: bytes = _KEY) -> int:
    """Post a reclaim of `droplet`, signed as Standard Webhooks 1.0.0 says, and return the status."""
    at = (datetime.now(UTC) + timedelta(hours=2)).isoformat()
    body = json.dumps({"event": "reclaim", "droplet_id": droplet, "at": at})
    stamp = str(int(time.time()))
    signature = hmac.digest(key, f"{message}.{stamp}.{body}".encode(), hashlib.sha256)
    headers = {
        "Content-Type": "application/json",
        "webhook-id": message,
        "webhook-timestamp": stamp,
        "webhook-signature": "v1," + base64.b64encode(signature).decode(),
    }
    status, text = namespace.request(
        f"http://{_HOOK}/webhook/digitalocean", body=body, headers=json.dumps(headers)
    )
    assert status, text
    return status
