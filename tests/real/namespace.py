# SPDX-License-Identifier: Apache-2.0
"""A network namespace that owns the metadata address, and processes that live in it.

It is no test and knows no cloud: what answers at the address is started by the test.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Self

ADDRESS = "169.254.169.254"
_NETNS_CONFIG = Path("/etc/netns")
_POLL_SECONDS = 0.02

# Exits 0 when something listens there.
_CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 1).close()"
# Prints the status of a GET or a POST; the body and the headers of a POST come as JSON arguments.
_REQUEST = """
import json, sys, urllib.error, urllib.request
url, body, headers = sys.argv[1], sys.argv[2].encode() or None, json.loads(sys.argv[3])
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
try:
    reply = opener.open(urllib.request.Request(url, body, headers), timeout=5)
except urllib.error.HTTPError as error:
    reply = error
except OSError as error:
    sys.exit(str(error))
print(reply.status)
sys.stdout.write(reply.read().decode())
"""


class Namespace:
    """One network with a loopback, the metadata address on it, and no route out.

    Use it as a context manager: at the end its processes are gone and so is the network.
    """

    def __init__(self) -> None:
        self.name = f"spotwatch-{uuid.uuid4().hex[:8]}"
        self._started: list[subprocess.Popen[bytes]] = []
        self._logs: list[IO[bytes]] = []

    def __enter__(self) -> Self:
        """Make it; GCP's host name is answered by its own hosts file, as a cloud's resolver would."""
        config = _NETNS_CONFIG / self.name
        config.mkdir(parents=True)
        (config / "hosts").write_text(
            f"127.0.0.1 localhost\n{ADDRESS} metadata.google.internal metadata\n", encoding="ascii"
        )
        _run("ip", "netns", "add", self.name)
        _run("ip", "-n", self.name, "link", "set", "lo", "up")
        _run("ip", "-n", self.name, "addr", "add", f"{ADDRESS}/32", "dev", "lo")
        return self

    def __exit__(self, *_: object) -> None:
        """End what was started here, the youngest first, and remove the network."""
        for process in reversed(self._started):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(5)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        for log in self._logs:
            log.close()
        subprocess.run(["ip", "netns", "del", self.name], check=False)
        shutil.rmtree(_NETNS_CONFIG / self.name, ignore_errors=True)

    def start(
        self, *command: str, log: Path, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start `python -m` with `command` inside; it sees no variable of spotwatch or of a cloud.

        Args:
            command: a module and its arguments.
            log: a file for its output, made anew.
            environment: the only variables beside PATH and HOME.
        """
        file = log.open("wb")
        self._logs.append(file)
        process = subprocess.Popen(
            ["ip", "netns", "exec", self.name, sys.executable, "-m", *command],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **(environment or {})},
        )
        self._started.append(process)
        return process

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run `command` inside and return how it went; 10 s at most."""
        return subprocess.run(
            ["ip", "netns", "exec", self.name, *command],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )

    def iptables(self, *rule: str) -> None:
        """Change the rules of this network; everything else stays as it was."""
        _run("ip", "netns", "exec", self.name, "iptables", *rule)

    def is_listening(self, port: int, host: str = ADDRESS) -> bool:
        """Tell whether something accepts connections there."""
        return self.run(sys.executable, "-c", _CONNECT, host, str(port)).returncode == 0

    def request(self, url: str, *, body: str = "", headers: str = "{}") -> tuple[int, str]:
        """Return status and body of a request from inside; status 0 when nothing answered."""
        done = self.run(sys.executable, "-c", _REQUEST, url, body, headers)
        if done.returncode != 0:
            return 0, done.stderr
        status, _, text = done.stdout.partition("\n")
        return int(status), text


def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> float:
    """Return the seconds it took until `condition` held.

    Raises:
        AssertionError: it did not within `seconds`; the message is `what`.
    """
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > seconds:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        time.sleep(_POLL_SECONDS)
    return time.monotonic() - began


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
