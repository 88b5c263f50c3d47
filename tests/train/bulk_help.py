# SPDX-License-Identifier: Apache-2.0
"""What the tests of bulk movers share: bodies in shared memory, an environment with made-up keys."""

from __future__ import annotations

import mmap
import os
import random
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

from spotwatch.train.parts import Held, crc32

PART_BYTES = 65_536


def shared(size_bytes: int, *, part_bytes: int = PART_BYTES, seed: int = 0) -> Held:
    """Return a body of random bytes in shared memory."""
    fd = os.memfd_create("body")
    os.ftruncate(fd, size_bytes)
    memory = mmap.mmap(fd, size_bytes)
    memory[:] = random.Random(seed).randbytes(size_bytes)
    weakref.finalize(memory, os.close, fd)
    return Held(memoryview(memory), part_bytes, fd)


def crcs_of(body: Held) -> tuple[str, ...]:
    """Return what an upload must return."""
    return tuple(crc32(part) for part in body.parts())


def use_keys(patch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Have boto3 find two made-up keys and nothing else."""
    for name in list(os.environ):
        if name.startswith("AWS_") and name != "AWS_CA_BUNDLE":
            patch.delenv(name)
    patch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    patch.setenv("AWS_SECRET_ACCESS_KEY", "not-on-any-command-line")
    patch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    patch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    patch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def wait_for(wanted: Callable[[], object], seconds: float = 15.0) -> None:
    """Wait until something holds."""
    until = time.monotonic() + seconds
    while not wanted():
        assert time.monotonic() < until, "it never came true"
        time.sleep(0.01)


def nothing(_: int) -> None:
    """Take no notice of progress."""


def is_gone(pid: int) -> bool:
    """Tell whether a process is no more, or only a remnant of one."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state in ("Z", "X")
