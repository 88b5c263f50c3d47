# SPDX-License-Identifier: Apache-2.0
"""A body made while it is sent: the same bytes as a copy, whatever the cut; and what memory it takes."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from spotwatch.errors import NoRoom
from spotwatch.train.parts import LEAST_PART_BYTES, Held
from spotwatch.train.state import tensors
from spotwatch.train.state.copying import Places
from spotwatch.train.state.staging import Staging
from spotwatch.train.state.state import State
from spotwatch.train.state.streaming import Streamed

torch = pytest.importorskip("torch")


def _named() -> dict[str, Any]:
    return {
        "transposed": torch.arange(600.0).view(20, 30).t(),
        "conjugate": torch.randn(9, dtype=torch.complex64).conj(),
        "wide": torch.arange(333, dtype=torch.int64),
        "bytes": torch.arange(251, dtype=torch.uint8),
        "half": torch.randn(77).bfloat16(),
        "small": torch.randn(40).to(torch.float8_e5m2),
        "expanded": torch.tensor([1.5]).expand(50),
        "parameter": torch.nn.Parameter(torch.randn(5, 5)),
        "empty": torch.empty(0, 3),
        "number": torch.tensor(7),
    }


@pytest.mark.parametrize("part_bytes", [8, 64, 1000, 4096, 2**20])
def test_the_parts_are_the_file(part_bytes: int) -> None:
    """Cut anywhere that parts may be cut, the parts together are what a copy would have been."""
    named = _named()
    layout = tensors.plan(named)
    copy = bytearray(layout.size_bytes)
    Places(layout, memoryview(copy)).fill(named)
    body = Streamed(layout, named)
    body.part_bytes = part_bytes
    parts = list(body.parts())
    assert b"".join(parts) == copy
    assert {len(part) for part in parts[:-1]} <= {part_bytes}
    assert b"".join(body.parts()) == copy, "an upload may begin again"


def test_each_part_has_memory_of_its_own() -> None:
    """A part that is still being sent does not change when the next one is made."""
    body = Streamed(tensors.plan(_named()), _named())
    body.part_bytes = 512
    parts = body.parts()
    first = next(parts)
    before = bytes(first)
    for _ in parts:
        pass
    assert bytes(first) == before


def test_a_state_without_room_is_streamed_and_that_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """The save is possible all the same; whoever reads the log learns what it costs."""
    model = torch.nn.Linear(3000, 3000)
    plenty, short = State(), State(Staging(lambda: LEAST_PART_BYTES + 1))
    for state in (plenty, short):
        state.track({"model": model})
    held = plenty.capture()
    assert isinstance(held.body, Held)
    assert held.is_copy
    for _ in range(2):
        short.warm()
        streamed = short.capture()
        assert not streamed.is_copy
        assert streamed.body.fd is None
        assert streamed.body.size_bytes == held.body.size_bytes
        assert b"".join(streamed.body.parts()) == held.body.view
    assert caplog.text.count("training waits until it is durable") == 1


def test_no_room_even_for_a_part_is_an_error() -> None:
    """Then nothing can be saved, and the error says how much is needed."""
    state = State(Staging(lambda: LEAST_PART_BYTES - 1))
    state.track({"model": torch.nn.Linear(3000, 3000)})
    with pytest.raises(NoRoom, match=f"not even for a part of {LEAST_PART_BYTES} bytes"):
        state.capture()


_CHILD = """
import torch
from spotwatch.train.state.staging import Staging
from spotwatch.train.state.state import State

class Model:
    named = {str(n): torch.full((2**20,), float(n)) for n in range(70)}
    named["large"] = torch.ones(40 * 2**20)
    named["transposed"] = torch.ones(1024, 5 * 1024).t()
    def state_dict(self): return self.named
    def load_state_dict(self, state): pass

def peak():
    for line in open("/proc/self/status"):
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024

state = State(Staging(lambda: 2**25))
state.track({"model": Model()})
open("/proc/self/clear_refs", "w").write("5")
before = peak()
snapshot = state.capture()
assert not snapshot.is_copy
total = sum(len(part) for part in snapshot.body.parts())
assert total == snapshot.body.size_bytes
print(total, peak() - before)
"""


@pytest.mark.timeout(60)
def test_streaming_takes_a_quarter_of_the_size_at_most() -> None:
    """The peak of a process that streams 480 MB grows by two parts and one tensor put in order."""
    done = subprocess.run([sys.executable, "-c", _CHILD], capture_output=True, text=True, check=True)
    total, extra = map(int, done.stdout.split())
    assert total > 470e6
    assert extra < 0.25 * total
