# SPDX-License-Identifier: Apache-2.0
"""Manifest and pointer: every byte counts."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotwatch.errors import CheckpointCorrupt
from spotwatch.train.manifest import File, Latest, Manifest, crc32, new_dir, order_of


def _manifest(**changes: Any) -> Manifest:
    return Manifest(
        **{
            "run_id": "run",
            "dir": "step-000001892-g2-abcd0123",
            "step": 1892,
            "generation": 2,
            "parent": None,
            "created_at": datetime(2026, 11, 29, tzinfo=UTC),
            "files": (File(name="rank-00000.safetensors", size_bytes=8, crc32="00000000"),),
            "state": {"rank-00000.safetensors": {"objects": {}, "rng": {}}},
            "versions": {"spotwatch": "1"},
            **changes,
        }
    )


def test_it_comes_back() -> None:
    """What is written is what is read, byte for byte."""
    body = _manifest().to_bytes()
    assert Manifest.from_bytes(body) == _manifest()
    assert Manifest.from_bytes(body).to_bytes() == body
    assert json.loads(body)["format"] == "spotwatch-checkpoint"


@settings(max_examples=300)
@given(st.data())
def test_any_flipped_bit_is_seen(data: st.DataObject) -> None:
    """No bit of a manifest can turn over unseen, its own checksum's included."""
    body = bytearray(_manifest().to_bytes())
    at = data.draw(st.integers(0, len(body) * 8 - 1))
    body[at // 8] ^= 1 << at % 8
    with pytest.raises(CheckpointCorrupt):
        Manifest.from_bytes(bytes(body))


@pytest.mark.parametrize(
    "changes",
    [
        {"dir": "../../etc"},
        {"dir": "step-000000001-g2-abcd0123"},
        {"files": (File(name="../x", size_bytes=1, crc32=""),)},
        {"files": (File(name="rank-00000.safetensors", size_bytes=-1, crc32=""),)},
    ],
)
def test_names_that_lead_elsewhere_are_refused(changes: dict[str, Any]) -> None:
    """A well-sealed manifest can still not make us read outside its directory."""
    with pytest.raises(CheckpointCorrupt):
        Manifest.from_bytes(_manifest(**changes).to_bytes())


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b"\x80\x04cos\nsystem\n", b"{" * 10_000])
def test_what_is_no_manifest(body: bytes) -> None:
    """Anything else, a pickle too, is corrupt and nothing more."""
    with pytest.raises(CheckpointCorrupt):
        Manifest.from_bytes(body)


def test_a_later_version_is_refused() -> None:
    """A form that we do not know is not guessed at."""
    body = _manifest().to_bytes().replace(b'"version":1', b'"version":2', 1)
    zero = body[:10] + b"00000000" + body[18:]
    with pytest.raises(CheckpointCorrupt, match="version 2"):
        Manifest.from_bytes(zero[:10] + crc32(zero).encode() + zero[18:])


def test_the_pointer_comes_back() -> None:
    """LATEST has the documented keys."""
    latest = Latest(
        dir="step-000000005-g3-ab", manifest_crc="00ff00ff", step=5, generation=3, writer="host:1"
    )
    assert Latest.from_bytes(latest.to_bytes()) == latest
    assert {"dir", "manifest_crc", "step", "generation", "writer"} < json.loads(latest.to_bytes()).keys()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"checkpoints/run/step-000000600.pt",
        b'{"version":1,"dir":"../x","manifest_crc":"","generation":1}',
        b'{"version":1,"dir":"step-000000005-ab","manifest_crc":""}',
        b'{"version":1,"dir":5,"manifest_crc":"","generation":1}',
        b'{"version":1,"dir":"step-000000005-g3-ab","manifest_crc":"","generation":1e400}',
        b'{"version":1,"dir":"step-000000005-g3-ab","manifest_crc":"","generation":1000000000}',
        b'{"version":1,"dir":"step-000000005-g3-ab","manifest_crc":"","generation":%s}' % (b"9" * 5000),
        b'{"version":1,"dir":"step-000000005-g3-ab","manifest_crc":"","generation":2}',
        b'{"version":1,"dir":"step-000000005-g999999999-ab","manifest_crc":"","generation":999999999}',
    ],
)
def test_what_is_no_pointer(body: bytes) -> None:
    """A pointer that names nothing of ours is corrupt."""
    with pytest.raises(CheckpointCorrupt):
        Latest.from_bytes(body)


def test_later_lives_outrank_higher_steps() -> None:
    """Ranking is by generation, then step; foreign names have none."""
    names = [new_dir(2400, 1), new_dir(1300, 2), new_dir(1400, 2)]
    assert sorted(names, key=lambda name: order_of(name) or (0, 0)) == names
    assert order_of("step-000001892-a3f2") == (0, 1892)
    assert order_of("tmp") is None
    assert new_dir(1, 1) != new_dir(1, 1)
