# SPDX-License-Identifier: Apache-2.0
"""What a listing tells without reading an object, and the order in which checkpoints are tried."""

from __future__ import annotations

import random

import pytest

from spotwatch.train.registry.listing import candidates, found_in
from spotwatch.train.registry.manifest import Latest
from spotwatch.train.store import Entry

OLD = "step-000000100-g1-a"
NEW = "step-000000200-g1-a"
LATER_LIFE = "step-000000150-g2-a"


def _entries(**kinds: str) -> list[Entry]:
    names = {
        "good": ["rank-00000.safetensors", "manifest.json"],
        "half": ["rank-00000.safetensors"],
        "nan": ["rank-00000.safetensors", "unhealthy", "manifest.json"],
        "bad": ["rank-00000.safetensors", "manifest.json", "quarantine.json"],
    }
    return [Entry(f"{directory}/{name}", 7) for directory, kind in kinds.items() for name in names[kind]]


def _latest(directory: str) -> Latest:
    return Latest(dir=directory, manifest_crc="0000beef", step=1, generation=9)


TABLE: dict[str, tuple[str | None, dict[str, str], list[str]]] = {
    "nothing": (None, {}, []),
    "by generation, then step": (
        None,
        {OLD: "good", NEW: "good", LATER_LIFE: "good"},
        [LATER_LIFE, NEW, OLD],
    ),
    "what LATEST names is first, whatever its rank": (
        OLD,
        {OLD: "good", NEW: "good", LATER_LIFE: "good"},
        [OLD, LATER_LIFE, NEW],
    ),
    "what LATEST names is tried though no listing shows it": (LATER_LIFE, {OLD: "good"}, [LATER_LIFE, OLD]),
    "without a manifest it was never a checkpoint": (None, {OLD: "good", NEW: "half"}, [OLD]),
    "what was saved as unhealthy is not tried": (None, {OLD: "good", NEW: "nan"}, [OLD]),
    "what is in quarantine is tried at last": (None, {OLD: "good", NEW: "bad"}, [NEW, OLD][::-1]),
    "what LATEST names too": (NEW, {OLD: "good", NEW: "bad", LATER_LIFE: "bad"}, [OLD, NEW, LATER_LIFE]),
    "all in quarantine": (None, {OLD: "bad", NEW: "bad"}, [NEW, OLD]),
}


@pytest.mark.parametrize("case", TABLE)
def test_order_of_candidates(case: str) -> None:
    """What LATEST names, then the highest rank; quarantined ones last, unhealthy or unfinished ones never."""
    latest, kinds, wanted = TABLE[case]
    entries = _entries(**kinds)
    random.shuffle(entries)
    pointer = None if latest is None else _latest(latest)
    tried = candidates(pointer, found_in(entries))
    assert [one.dir for one in tried] == wanted
    assert all((one.manifest_crc == "0000beef") is (one.dir == latest) for one in tried)


def test_foreign_names_are_passed_over() -> None:
    """The pointer, the lease, a probe and a stranger's files are no checkpoints."""
    keys = ["LATEST", "LEASE", ".probe/ab", "notes/mine.txt", "step-zzz/manifest.json", "step-000000001-g1-a"]
    assert found_in(Entry(key, 1) for key in keys) == []


def test_sizes_are_kept() -> None:
    """Each object's size is known by its name, so that a manifest's claims can be compared with them."""
    (found,) = found_in([Entry(f"{OLD}/rank-00000.safetensors", 5), Entry(f"{OLD}/manifest.json", 2)])
    assert (found.sizes["rank-00000.safetensors"], found.size_bytes, found.order) == (5, 7, (1, 100))
