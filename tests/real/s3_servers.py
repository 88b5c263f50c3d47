# SPDX-License-Identifier: Apache-2.0
"""Three S3 servers on loopback, each with a bucket: SeaweedFS, rclone, moto.

They come from PyPI (the extra `real`). A test takes a prefix of its own, and may read here what a server is
known to do. It starts nothing of spotwatch.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

KEY, SECRET = "AKIDEXAMPLE123456", "SECRETSECRETSECRET12"
READ_KEY, READ_SECRET = "AKIDREADONLY12345", "READREADREADREADREAD"
"""May only read and list, where a server knows such keys: SeaweedFS."""
BUCKET = "real-checkpoints"
_READY_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class S3Server:
    """A server that answers, with its bucket made.

    Args:
        name: of the program.
        endpoint: its URL.
        is_conditional: whether it was seen to enforce If-None-Match and If-Match.
        checks_secrets: whether it refuses a wrong signature.
        many_uploads: that it can have under way; more than a page of them, where it can.
    """

    name: str
    endpoint: str
    is_conditional: bool
    checks_secrets: bool
    many_uploads: int = 1003

    def options(self, secret: str = SECRET) -> dict[str, Any]:
        """Return what boto3's client needs to reach it."""
        return {
            "endpoint_url": self.endpoint,
            "region_name": "us-east-1",
            "aws_access_key_id": KEY,
            "aws_secret_access_key": secret,
        }

    def environ(self, key: str = KEY, secret: str = SECRET) -> dict[str, str]:
        """Return the variables that lead a process to it."""
        return {
            "AWS_ACCESS_KEY_ID": key,
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.endpoint,
        }

    def client(self) -> Any:
        """Return a client of boto3 for what the tests do by hand."""
        config = Config(
            retries={"total_max_attempts": 1},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        return boto3.session.Session().client("s3", config=config, **self.options())


@contextlib.contextmanager
def start(name: str, folder: Path) -> Iterator[S3Server]:
    """Run the server of that name with its files in `folder`; skip the test (in CI: fail it) without it."""
    with _SERVERS[name](folder) as server:
        yield server


@contextlib.contextmanager
def _weed(folder: Path) -> Iterator[S3Server]:
    identity = {
        "name": "test",
        "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    reader = {
        "name": "reader",
        "credentials": [{"accessKey": READ_KEY, "secretKey": READ_SECRET}],
        "actions": ["Read", "List"],
    }
    (folder / "ids.json").write_text(json.dumps({"identities": [identity, reader]}), encoding="utf-8")
    (folder / "files").mkdir()
    names = ["master.port", "master.port.grpc", "volume.port", "volume.port.grpc"]
    names += ["filer.port", "filer.port.grpc", "s3.port", "s3.port.grpc"]
    ports = dict(zip(names, _free_ports(len(names)), strict=True))
    command = [
        *(_program("weed"), "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={folder / 'files'}"),
        *("-filer", "-s3", f"-s3.config={folder / 'ids.json'}"),
        *("-master.volumeSizeLimitMB=256", "-volume.max=20"),
        # Left to themselves these two take fixed ports.
        *("-s3.port.iceberg=0", "-s3.port.lance=0"),
        *(f"-{name}={port}" for name, port in ports.items()),
    ]
    # SIGTERM leaves it alive for minutes.
    with _run(command, folder, signal.SIGKILL) as process:
        server = S3Server("weed", f"http://127.0.0.1:{ports['s3.port']}", True, True)
        _make_bucket(server, process, folder)
        yield server


@contextlib.contextmanager
def _rclone(folder: Path) -> Iterator[S3Server]:
    (folder / "files").mkdir()
    (port,) = _free_ports(1)
    command = [
        *(_program("rclone"), "serve", "s3", "--addr", f"127.0.0.1:{port}", "--auth-key", f"{KEY},{SECRET}"),
        *("--vfs-cache-mode", "writes", "--cache-dir", str(folder / "cache"), str(folder / "files")),
    ]
    with _run(command, folder, signal.SIGTERM) as process:
        server = S3Server("rclone", f"http://127.0.0.1:{port}", False, True, many_uploads=900)
        _make_bucket(server, process, folder)
        yield server


@contextlib.contextmanager
def _moto(folder: Path) -> Iterator[S3Server]:
    (port,) = _free_ports(1)
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with _run(command, folder, signal.SIGTERM) as process:
        # It looks through all uploads for each one that is removed.
        server = S3Server("moto", f"http://127.0.0.1:{port}", True, False, many_uploads=30)
        _make_bucket(server, process, folder)
        yield server


_SERVERS = {"weed": _weed, "rclone": _rclone, "moto": _moto}


@contextlib.contextmanager
def _run(command: list[str], folder: Path, end: signal.Signals) -> Iterator[subprocess.Popen[bytes]]:
    # Without RCLONE_CONFIG, rclone reads and may write that of whoever runs the tests.
    environ = {**os.environ, "RCLONE_CONFIG": str(folder / "rclone.conf")}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, env=environ)
    try:
        yield process
    finally:
        process.send_signal(end)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _make_bucket(server: S3Server, process: subprocess.Popen[bytes], folder: Path) -> None:
    client = server.client()
    until = time.monotonic() + _READY_SECONDS
    while True:
        try:
            client.create_bucket(Bucket=BUCKET)
            client.put_object(Bucket=BUCKET, Key="ready", Body=b"yes")
        except (BotoCoreError, ClientError) as error:
            if process.poll() is not None or time.monotonic() > until:
                said = (folder / "log").read_text(encoding="utf-8", errors="replace")[-2000:]
                raise AssertionError(f"{server.name} is not ready: {error}\n{said}") from error
            time.sleep(0.1)
        else:
            return


def _program(name: str) -> str:
    # Beside the interpreter: the virtual environment need not be on the path.
    found = shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if found:
        return found
    if os.environ.get("CI") == "true":
        pytest.fail(f"in CI this must run, but it lacks {name}; pip install '.[real]'")
    pytest.skip(f"lacks {name}; pip install '.[real]'")


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
