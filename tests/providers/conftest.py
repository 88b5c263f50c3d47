# SPDX-License-Identifier: Apache-2.0
"""What holds for all tests of providers: the clouds' variables of whoever runs them stay outside."""

from __future__ import annotations

import os

import pytest

_PREFIXES = ("AWS_", "GCE_", "KUBERNETES_")


@pytest.fixture(autouse=True)
def _no_cloud_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in tuple(os.environ):
        if name.startswith(_PREFIXES):
            monkeypatch.delenv(name)
