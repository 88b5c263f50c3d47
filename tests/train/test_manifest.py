# SPDX-License-Identifier: Apache-2.0
"""Manifest and pointer: every byte counts."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotwatch.errors import CheckpointCorrupt, ConfigError
from spotwatch.train.parts import crc32
from spotwatch.train.registry.manifest import File, Latest, Manifest, new_dir, order_of

FILE = File.of("rank-00000.safetensors", 8, 5, ("00ff00ff", "89abcdef"))


def _manifest(**changes: Any) -> Manifest:
    return Manifest(
        **{
            "run_id": "run",
            "dir": "step-000001892-g2-abcd0123",
            "step": 1892,
            "generation": 2,
            "parent": None,
            "created_at": datetime(2026, 11, 29, tzinfo=UTC),
            "files": (FILE,),
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


def _sealed(**changes: Any) -> bytes:
    """Return a manifest in which keys were changed, with the right checksum over it."""
    row = json.loads(_manifest().to_bytes()) | changes
    row = {key: value for key, value in row.items() if value is not _GONE}
    zero = json.dumps(row | {"crc32": "00000000"}, separators=(",", ":")).encode() + b"\n"
    return zero[:10] + crc32(zero).encode() + zero[18:]


_GONE = object()


def _files(**changes: Any) -> dict[str, Any]:
    row = json.loads(_manifest().to_bytes())["files"][0] | changes
    return {"files": [{key: value for key, value in row.items() if value is not _GONE}]}


HOSTILE: dict[str, dict[str, Any]] = {
    "another directory": {"dir": "../../etc"},
    "another step": {"dir": "step-000000001-g2-abcd0123"},
    "another generation": {"dir": "step-000001892-g1-abcd0123"},
    "a directory that is a number": {"dir": 5},
    "a step that is a truth value": {"step": True},
    "a fractional generation": {"generation": 2.0},
    "a parent elsewhere": {"parent": "../step-000000001-g2-abcd0123"},
    "a parent that is a list": {"parent": ["step-000000001-g2-abcd0123"]},
    "no moment": {"created_at": "yesterday"},
    "a writer that is an object": {"writer": {}},
    "healthy in words": {"healthy": "yes"},
    "versions that are a list": {"versions": []},
    "no tensors": {"tensors": _GONE},
    "no files": {"files": []},
    "files that are a number": {"files": 7},
    "more ranks than files": {"world_size": 2},
    "no ranks": {"world_size": 0},
    "ranks without end": {"world_size": 10**30},
    "a file elsewhere": _files(name="../x"),
    "a file with a path": _files(name="a/rank-00000.safetensors"),
    "a file of another rank": _files(name="rank-00001.safetensors"),
    "a manifest for a file": _files(name="manifest.json"),
    "one name twice": {"files": _files()["files"] * 2, "world_size": 2},
    "a negative size": _files(size_bytes=-1),
    "a fractional size": _files(size_bytes=8.0),
    "a size that is a truth value": _files(size_bytes=True),
    "a huge size": _files(size_bytes=10**18, part_bytes=10**18, parts=["00ff00ff"]),
    "a huge size in many parts": _files(size_bytes=10**18),
    "parts of no size": _files(part_bytes=0),
    "parts of negative size": _files(part_bytes=-5),
    "a part too few": _files(parts=["00ff00ff"]),
    "a part too many": _files(parts=["00ff00ff"] * 3),
    "no part": _files(parts=[]),
    "parts that are a word": _files(parts="00ff00ff"),
    "parts without end": _files(size_bytes=20_000, part_bytes=1, parts=["00ff00ff"] * 20_000),
    "a checksum of a part that is none": _files(parts=["00ff00ff", "xyzxyzxy"]),
    "a checksum of a part that is a number": _files(parts=["00ff00ff", 5]),
    "a whole that is not of its parts": _files(crc32="00000000"),
    "state of another file": {"state": {"rank-00001.safetensors": {}}},
    "state that is a list": {"state": []},
}


@pytest.mark.parametrize("what", HOSTILE)
def test_what_leads_elsewhere_or_does_not_add_up_is_refused(what: str) -> None:
    """A well-sealed manifest can make us neither read outside its directory nor reserve what is not there."""
    with pytest.raises(CheckpointCorrupt, match="not a manifest"):
        Manifest.from_bytes(_sealed(**HOSTILE[what]))


def test_the_way_to_seal_one_by_hand_is_right() -> None:
    """What the hostile ones are made of is accepted, so that each is refused for what it changes."""
    assert Manifest.from_bytes(_sealed()) == _manifest()


def test_files_without_the_checksums_of_their_parts_are_refused_by_name() -> None:
    """A list of files as it was before there were parts cannot be checked in parts; the message says so."""
    with pytest.raises(CheckpointCorrupt, match="listed without the checksums of their parts"):
        Manifest.from_bytes(_sealed(**_files(parts=_GONE, part_bytes=_GONE)))


def test_many_ranks_and_what_is_unhealthy_come_back() -> None:
    """Every field of the manifest is written and read."""
    files = tuple(replace(FILE, name=f"rank-{rank:05d}.safetensors") for rank in range(3))
    manifest = _manifest(
        files=files,
        state={file.name: {"rank": rank} for rank, file in enumerate(files)},
        tensors={"model.weight": {"chunks": [[0, 4]]}},
        world_size=3,
        healthy=False,
        parent="step-000001800-g1-abcd0123",
    )
    assert Manifest.from_bytes(manifest.to_bytes()) == manifest


@given(body=st.binary(max_size=200), part_bytes=st.integers(1, 64))
def test_a_file_is_its_parts(body: bytes, part_bytes: int) -> None:
    """The spans of the parts cover the file without gap or overlap, and their checksums make the whole's."""
    pieces = [body[at : at + part_bytes] for at in range(0, len(body), part_bytes)]
    file = File.of("rank-00000.safetensors", len(body), part_bytes, [crc32(piece) for piece in pieces])
    assert file.crc32 == f"{zlib.crc32(body):08x}"
    assert [body[slice(*file.span(index))] for index in range(len(file.parts))] == pieces


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b"\x80\x04cos\nsystem\n", b"{" * 10_000])
def test_what_is_no_manifest(body: bytes) -> None:
    """Anything else, a pickle too, is corrupt and nothing more."""
    with pytest.raises(CheckpointCorrupt):
        Manifest.from_bytes(body)


def test_a_later_version_is_refused() -> None:
    """A sound form that we do not know is neither guessed at nor called damaged."""
    with pytest.raises(ConfigError, match="install that one again"):
        Manifest.from_bytes(_sealed(version=2))


@pytest.mark.parametrize("changes", [{"version": 0}, {"version": "2"}, {"version": 2, "format": "other"}])
def test_what_was_never_a_version_is_corrupt(changes: dict[str, Any]) -> None:
    """Nobody wrote it."""
    with pytest.raises(CheckpointCorrupt, match="format"):
        Manifest.from_bytes(_sealed(**changes))


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
