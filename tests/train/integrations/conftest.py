# SPDX-License-Identifier: Apache-2.0
"""What the tests of integrations share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def only_accelerator() -> Iterator[None]:
    """Let the test's Accelerator know of no other, as in a process of its own."""
    from .accelerate_world import forget  # noqa: PLC0415 - the library may not be here

    forget()
    yield
    forget()
