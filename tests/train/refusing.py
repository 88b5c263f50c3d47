# SPDX-License-Identifier: Apache-2.0
"""An operating system that refuses, where a test wants it to."""

from __future__ import annotations

import os

import pytest


def refuse(monkeypatch: pytest.MonkeyPatch, name: str, number: int) -> None:
    """Let a call of the system, as `fsync`, fail with an errno."""

    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(f"{'fcntl' if name == 'flock' else 'os'}.{name}", fail)
