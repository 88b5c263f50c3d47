# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks of saving and restoring share: the sink, the trainers, the link's floor, and figures.

It measures nothing of spotwatch itself and does not import it, nor torch.
"""

from __future__ import annotations

import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from _memory import Peak, proportional_bytes, used_bytes

MB = 1_000_000
_HERE = Path(__file__).parent
_CHUNK_BYTES = 2**20
_AHEAD_NICE = -20
# What would make the process another rank, another run or another machine's.
_NOT_OURS = ("SPOTWATCH_", "AWS_", "RANK", "LOCAL_RANK", "WORLD_SIZE", "TORCHELASTIC_", "SPACES_")


class Sink:
    """The sink's process.

    Args:
        process: that was started.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        if process.stdout is None:
            raise SystemExit("the sink has no output to read its port from")
        self._process = process
        self.port = int(process.stdout.readline())

    def stats(self) -> dict[str, Any]:
        """Return what it has carried and how much CPU that took."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/_stats") as answer:
            told: dict[str, Any] = json.load(answer)
        return told

    def send_seconds(self, size_bytes: int) -> float:
        """Return how long a plain socket takes to send so many bytes: the floor of any upload."""
        chunk = memoryview(bytes(_CHUNK_BYTES))
        begun = time.perf_counter()
        with socket.create_connection(("127.0.0.1", self.port)) as sock:
            head = f"PUT /floor/object HTTP/1.1\r\nHost: sink\r\nContent-Length: {size_bytes}\r\n\r\n"
            sock.sendall(head.encode())
            for at in range(0, size_bytes, _CHUNK_BYTES):
                sock.sendall(chunk[: min(_CHUNK_BYTES, size_bytes - at)])
            _expect(sock, b" 200 ")
        return time.perf_counter() - begun

    def fetch_seconds(self, name: str) -> float:
        """Return how long a plain socket takes to fetch an object and to forget it."""
        room = bytearray(_CHUNK_BYTES)
        begun = time.perf_counter()
        with socket.create_connection(("127.0.0.1", self.port)) as sock:
            sock.sendall(f"GET /{name} HTTP/1.1\r\nHost: sink\r\nConnection: close\r\n\r\n".encode())
            _expect(sock, b" 200 ")
            while sock.recv_into(room):
                pass
        return time.perf_counter() - begun


class Worker:
    """A trainer's process, which answers commands.

    Args:
        process: that was started.
        ahead: as `go_ahead`.
    """

    def __init__(self, process: subprocess.Popen[str], *, ahead: bool) -> None:
        self._process = process
        self._ahead = ahead

    def do(self, deed: str) -> dict[str, Any]:
        """Let it do `deed`; return what it says, and beside it what memory it and its children took."""
        if self._process.stdin is None or self._process.stdout is None:
            raise SystemExit("the trainer has no pipes")
        with Peak(self._process.pid, go_ahead if self._ahead else lambda _: None) as peak:
            print(deed, file=self._process.stdin, flush=True)
            line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the trainer ended during {deed!r} with {self._process.wait()}")
        told: dict[str, Any] = json.loads(line)
        return told | {
            "memory_before_bytes": peak.first_bytes,
            "memory_peak_bytes": peak.most_bytes,
            "memory_after_bytes": used_bytes(self._process.pid),
            "memory_after_pss_bytes": proportional_bytes(self._process.pid),
            "load_average": os.getloadavg()[0],
        }


def go_ahead(pid: int) -> None:
    """Let the session of a process go before whatever else the machine has to do; root only.

    Sessions share the processor before processes do (sched(7), "The autogroup feature"), so a niceness of the
    process alone would not help.
    """
    try:
        Path(f"/proc/{pid}/autogroup").write_text(str(_AHEAD_NICE))
    except (FileNotFoundError, ProcessLookupError):
        return  # it is gone already, or this kernel has no such groups
    except OSError as error:
        raise SystemExit(f"--ahead: cannot set the priority of process {pid}: {error}") from error


@contextmanager
def sink(rate: float, *, keep: bool, ahead: bool) -> Iterator[Sink]:
    """Run a sink of `rate` MB/s for as long as the block lasts."""
    command = [sys.executable, str(_HERE / "_sink.py"), "--rate", str(rate), "--until-eof"]
    with _process([*command, "--keep"] if keep else command, os.environ) as process:
        if ahead:
            go_ahead(process.pid)
        yield Sink(process)


@contextmanager
def worker(
    script: str, arguments: Sequence[str], port: int, uploader: str, *, ahead: bool
) -> Iterator[Worker]:
    """Run a trainer that saves to the sink, with a runtime directory of its own.

    Args:
        script: beside this file.
        arguments: of the script.
        port: of the sink.
        uploader: what moves the bytes, as `SPOTWATCH_UPLOADER` names it.
        ahead: as `go_ahead`.
    """
    with tempfile.TemporaryDirectory(prefix="spotwatch-bench-") as folder:
        environ = {name: text for name, text in os.environ.items() if not name.startswith(_NOT_OURS)}
        environ |= {
            "SPOTWATCH_RUNTIME_DIR": folder,
            "SPOTWATCH_UPLOADER": uploader,
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "bench",
            "AWS_SECRET_ACCESS_KEY": "bench",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        with _process([sys.executable, str(_HERE / script), *arguments], environ) as process:
            yield Worker(process, ahead=ahead)


def machine() -> dict[str, Any]:
    """Return what the figures depend on."""
    versions = {}
    for name in ("torch", "boto3", "obstore", "spotwatch"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "absent"
    cpu = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": cpu[0].partition(":")[2].strip() if cpu else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": versions,
        "load_average": os.getloadavg(),
    }


def spread(values: Sequence[float | None]) -> dict[str, float | None]:
    """Return median, least and most of what is known."""
    known = [value for value in values if value is not None]
    if not known:
        return {"median": None, "least": None, "most": None}
    return {"median": statistics.median(known), "least": min(known), "most": max(known)}


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of text in columns, the first one left-aligned."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            text.ljust(width) if column == 0 else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def shown(figure: Mapping[str, float | None], scale: float = 1.0, digits: int = 2) -> str:
    """Return median and spread for people."""
    median, least, most = figure["median"], figure["least"], figure["most"]
    if median is None or least is None or most is None:
        return "-"
    return f"{median * scale:.{digits}f} ({least * scale:.{digits}f}-{most * scale:.{digits}f})"


def write(document: Mapping[str, Any], path: str) -> None:
    """Write a JSON document to `path`, or to stdout without one."""
    text = json.dumps(document, indent=1) + "\n"
    if path:
        Path(path).write_text(text)
    else:
        sys.stdout.write(text)


@contextmanager
def _process(command: Sequence[str], environ: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        command,
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
            if process.stdin is not None:
                process.stdin.close()
            if process.wait(60):
                raise SystemExit(f"{command[1]} ended with {process.returncode}")
        finally:
            process.kill()


def _expect(sock: socket.socket, text: bytes) -> None:
    answer = sock.recv(_CHUNK_BYTES)
    if text not in answer.partition(b"\r\n")[0]:
        raise SystemExit(f"the sink answers {answer[:200]!r}")
