# SPDX-License-Identifier: Apache-2.0
"""Machines that leave no process behind."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.e2e.harness import Machine


@pytest.fixture
def make_machine() -> Iterator[Callable[[Mapping[str, str]], Machine]]:
    """Return a maker of machines, whose processes are killed in the end.

    Not in pytest's own folder: other users may not enter it.
    """
    machines: list[Machine] = []
    with tempfile.TemporaryDirectory(prefix="spotwatch-test-") as folder:
        Path(folder).chmod(0o755)

        def make(environment: Mapping[str, str]) -> Machine:
            machines.append(Machine(Path(folder), environment))
            return machines[-1]

        yield make
        for machine in machines:
            machine.end()
