# SPDX-License-Identifier: Apache-2.0
"""A Prometheus and an Alertmanager on loopback with the files that we ship, and who hears the alerts.

Of the shipped files only addresses and intervals are changed, so that a test takes seconds. It knows no
daemon: machines are entries in the file that the shipped configuration reads.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import re
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DEPLOY = Path(__file__).parents[2] / "deploy"
READY_SECONDS = 60.0
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))

Series = dict[str, Any]


@dataclass(slots=True)
class Monitoring:
    """What runs: addresses, and what the receivers of the alerts were told.

    Args:
        prometheus: its URL.
        folder: holds `machines/`, one JSON file for each group of targets.
        told: every alert that came, newest last, with `receiver` and `status`.
    """

    prometheus: str
    folder: Path
    told: list[dict[str, Any]] = field(default_factory=list)

    def watch(self, **machines: str) -> None:
        """Replace the machines that are scraped: address by name; the name becomes the label `instance`."""
        entries = [{"targets": [address], "labels": {"instance": name}} for name, address in machines.items()]
        fresh = self.folder / "machines" / "all.new"
        fresh.write_text(json.dumps(entries), encoding="utf-8")
        fresh.rename(fresh.with_suffix(".json"))

    def ask(self, expr: str) -> list[Series]:
        """Return the series of an instant query now."""
        return self._query("query", query=expr)

    def ask_range(self, expr: str, start: float, end: float, step: float = 1.0) -> list[Series]:
        """Return the series of a range query; each has `values`: pairs of time and text."""
        return self._query("query_range", query=expr, start=start, end=end, step=step)

    def label_values(self, label: str, selector: str, start: float, end: float) -> list[str]:
        """Return what Grafana offers for a variable `label_values(selector, label)`."""
        asked = urllib.parse.urlencode({"match[]": selector, "start": start, "end": end})
        found: list[str] = fetch(f"{self.prometheus}/api/v1/label/{label}/values?{asked}")["data"]
        return found

    def alerts(self, name: str, status: str, receiver: str = "") -> list[dict[str, Any]]:
        """Return what a receiver was told of one alert."""
        return [
            alert
            for alert in list(self.told)
            if (alert["labels"]["alertname"], alert["status"]) == (name, status)
            and receiver in (alert["receiver"], "")
        ]

    def _query(self, kind: str, **asked: Any) -> list[Series]:
        body = urllib.parse.urlencode(asked).encode()
        found: list[Series] = fetch(f"{self.prometheus}/api/v1/{kind}", body)["data"]["result"]
        return found


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Monitoring]:
    """Start both and the receiver of alerts; at the end all are gone. It takes 2 s."""
    (folder / "machines").mkdir()
    ports = free_ports(3)
    made = Monitoring(prometheus=f"http://127.0.0.1:{ports[0]}", folder=folder)
    _write_files(folder, alertmanager=ports[1], receiver=ports[2])
    with contextlib.ExitStack() as stack:
        stack.enter_context(_receiving(ports[2], made.told))
        for name, arguments in (
            (
                "prometheus-alertmanager",
                (
                    f"--config.file={folder / 'alertmanager.yml'}",
                    f"--storage.path={folder / 'alertmanager'}",
                    f"--web.listen-address=127.0.0.1:{ports[1]}",
                    "--cluster.listen-address=",
                ),
            ),
            (
                "prometheus",
                (
                    f"--config.file={folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={folder / 'tsdb'}",
                    f"--web.listen-address=127.0.0.1:{ports[0]}",
                ),
            ),
        ):
            stack.enter_context(_process(name, arguments, folder))
        for port in ports[:2]:
            _wait_ready(f"http://127.0.0.1:{port}/-/ready", folder)
        yield made


def until(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    """Return what `condition` returns once it is true.

    Raises:
        AssertionError: it was not within `seconds`.
    """
    end = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < end, f"not within {seconds:g} s: {what}"
        time.sleep(0.1)
    return result


def fetch(url: str, body: bytes | None = None) -> dict[str, Any]:
    """Return the JSON of an answer.

    Raises:
        AssertionError: the server refuses; its reason is in it.
    """
    try:
        with _OPENER.open(url, body, timeout=20) as reply:
            document: dict[str, Any] = json.load(reply)
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{url}: {error.read().decode()}") from error
    return document


def fetch_text(url: str) -> str:
    """Return the text of an answer."""
    with _OPENER.open(url, timeout=20) as reply:
        text: bytes = reply.read()
    return text.decode()


def free_ports(count: int) -> list[int]:
    """Return ports of loopback that nobody listens on."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _write_files(folder: Path, *, alertmanager: int, receiver: int) -> None:
    """Copy the shipped files; seconds become one, addresses ours, and nothing else changes."""
    prometheus = (DEPLOY / "prometheus/prometheus.yml").read_text(encoding="utf-8")
    prometheus = prometheus.replace("127.0.0.1:9093", f"127.0.0.1:{alertmanager}")
    prometheus = re.sub(r"(scrape_interval|scrape_timeout|refresh_interval): \d+s", r"\1: 1s", prometheus)
    rules = (DEPLOY / "prometheus/spotwatch.rules.yml").read_text(encoding="utf-8")
    rules = re.sub(r"( interval): \d+s", r"\1: 1s", rules)
    routes = (DEPLOY / "prometheus/alertmanager.yml").read_text(encoding="utf-8")
    routes = routes.replace("127.0.0.1:9099", f"127.0.0.1:{receiver}")
    routes = re.sub(r"group_(wait|interval): [1-9]\d*s", r"group_\1: 1s", routes)
    for name, text in (
        ("prometheus.yml", prometheus),
        ("spotwatch.rules.yml", rules),
        ("alertmanager.yml", routes),
    ):
        (folder / name).write_text(text, encoding="utf-8")


@contextlib.contextmanager
def _process(name: str, arguments: tuple[str, ...], folder: Path) -> Iterator[None]:
    program = shutil.which(name)
    assert program, f"{name} is missing"
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen([program, *arguments], stdout=log, stderr=log, cwd=folder)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def _receiving(port: int, told: list[dict[str, Any]]) -> Iterator[None]:
    class Receiver(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            told.extend({**alert, "receiver": body["receiver"]} for alert in body["alerts"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Keep quiet."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", port), Receiver) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


def _wait_ready(url: str, folder: Path) -> None:
    def is_ready() -> bool:
        try:
            return bool(fetch_text(url))
        except OSError:
            return False

    try:
        until(is_ready, READY_SECONDS, url)
    except AssertionError as error:
        logs = "\n".join(path.read_text(encoding="utf-8")[-2000:] for path in folder.glob("*.log"))
        raise AssertionError(f"{error}\n{logs}") from error
