# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of meshes: tensor parallel, FSDP2 over it, HSDP; any of them goes on with any other.

Sizes divide by no number of ranks. Tensors are compared by checksums of the whole, losses by their bits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.train.launching import ranks

pytest.importorskip("torch", reason="meshes are torch's")
pytestmark = pytest.mark.timeout(400)

KINDS = ("fsdp", "tp", "2x2", "hsdp")
HOPS = ("2x2", "fsdp", "tp")
"""On four ranks; then two by FSDP2 over tensor parallelism, one process, and four again."""
Told = list[dict[str, Any]]
_ROOT = str(Path(__file__).parents[2])


def play(count: int, out: Path, *verbs: str) -> Told:
    """Let so many ranks carry out the verbs."""
    return ranks(count, "mesh_run.py", out, "mesh" if count > 1 else "plain", *verbs, PYTHONPATH=_ROOT)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where all that is saved lies."""
    return tmp_path_factory.mktemp("meshes")


@pytest.fixture(scope="module")
def four(base: Path) -> Told:
    """Return what four ranks tell that save on each mesh and go on, there and on each other; and the hops."""
    verbs: list[str] = []
    for kind in KINDS:
        verbs += [f"kind={kind}", f"root={base / kind}", f"train=2#{kind}", "save=2", f"note=saved-{kind}"]
        verbs += [
            f"train=2#{kind}-on",
            f"kind={kind}",
            "restore",
            f"train=2#{kind}-again",
            f"note=end-{kind}",
        ]
    for kind in KINDS:
        for source in KINDS:
            verbs += [f"kind={kind}", f"root={base / source}", f"restore=#{source}-{kind}"]
            verbs += [f"note={source}-{kind}", f"train=2#{source}-{kind}"]
    verbs += [f"root={base / 'hops'}", "kind=2x2", "train=2#hops", "save=2", "note=hop-0"]
    for hop, kind in enumerate(HOPS[1:], 1):
        verbs += [f"kind={kind}", f"restore=#hop-{hop}", "train=1#hop", f"save={2 + hop}", f"note=hop-{hop}"]
    verbs += [f"root={base / 'chance'}", "kind=2x2", "seed", "save=1", "draw=saved"]
    for kind in ("2x2", "fsdp", "tp"):
        verbs += [f"kind={kind}", "seed", f"restore=#chance-{kind}", f"draw={kind}"]
    verbs += [f"root={base / 'uneven'}", "kind=2x2", "uneven", "save=1"]
    verbs += ["kind=fsdp", "restore=#differs", "kind=2x2", "restore=#same", "note=uneven"]
    return play(4, base / "four", *verbs)


@pytest.fixture(scope="module")
def fewer(base: Path, four: Told) -> dict[int, Told]:
    """Return what two ranks and one process tell that go on with what four have saved; and their hops."""
    del four
    made = {}
    for count, kinds in ((2, ("fsdp", "tp", "2x2")), (1, ("plain",))):
        verbs: list[str] = []
        for kind in kinds:
            for source in KINDS:
                verbs += [f"kind={kind}", f"root={base / source}", f"restore=#{source}-{kind}"]
                verbs += [f"note={source}-{kind}", f"train=2#{source}-{kind}"]
        verbs += [f"root={base / 'hops'}", f"kind={kinds[-1]}", "restore=#hop", "note=arrived"]
        verbs += ["train=1#hop", f"save={10 - count}", "note=hop"]
        made[count] = play(count, base / f"few{count}", *verbs)
    return made


def state_of(note: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a note that does not depend on the number of ranks."""
    sums = {name: crc for name, crc in note["tensors"].items() if not name.startswith("rng/")}
    return note | {"tensors": sums}


def bits(told: list[str]) -> list[float]:
    """Return losses."""
    return [float.fromhex(loss) for loss in told]


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_mesh_goes_on_bit_by_bit(kind: str, four: Told) -> None:
    """After a resume the losses are exactly those of the run that was not interrupted."""
    for rank in four:
        assert rank[f"train=2#{kind}-again"] == rank[f"train=2#{kind}-on"]
        # Eleven parameters, each with three of the optimizer; a buffer, a position's table, a generator.
        assert len(state_of(rank[f"note=saved-{kind}"])["tensors"]) == 11 * 4 + 3


@pytest.mark.parametrize("source", KINDS)
@pytest.mark.parametrize("kind", [*KINDS, "fsdp of 2", "tp of 2", "2x2 of 2", "plain of 1"])
def test_any_mesh_goes_on_with_any(source: str, kind: str, four: Told, fewer: dict[int, Told]) -> None:
    """Every tensor is the same to the last bit; the losses that follow differ by the order of sums alone."""
    kind, _, count = kind.partition(" of ")
    saved = four[0][f"note=saved-{source}"]
    for rank in fewer[int(count)] if count else four:
        assert state_of(rank[f"note={source}-{kind}"]) == state_of(saved)
        assert bits(rank[f"train=2#{source}-{kind}"]) == pytest.approx(
            bits(four[0][f"train=2#{source}-on"]), rel=2e-6
        )


def test_a_run_that_is_moved_from_mesh_to_mesh(base: Path, four: Told, fewer: dict[int, Told]) -> None:
    """2 x 2, 4 x 1, 1 x 4, 2 x 1, one process and 2 x 2 again: each goes on where the one before was."""
    assert all(rank["restore=#hop-2"].startswith("step-000000003-") for rank in four)
    two, one = fewer[2], fewer[1]
    assert {str(state_of(rank["note=arrived"])) for rank in two} == {str(state_of(four[0]["note=hop-2"]))}
    assert state_of(one[0]["note=arrived"]) == state_of(two[0]["note=hop"])
    back = play(
        4, base / "back", f"root={base / 'hops'}", "kind=2x2", "restore=#hop", "note=arrived", "train=1#hop"
    )
    assert {str(state_of(rank["note=arrived"])) for rank in back} == {str(state_of(one[0]["note=hop"]))}
    assert back[0]["note=arrived"]["at"] == 6


def test_ranks_that_see_the_same_data_draw_alike_on_another_mesh(four: Told) -> None:
    """Two groups become four, of which two go on with what was saved; or one, as tensor parallelism needs."""
    saved = [rank["draw=saved"] for rank in four]
    assert saved[0] == saved[1] != saved[2] == saved[3]
    assert [rank["draw=2x2"] for rank in four] == saved
    spread = [rank["draw=fsdp"] for rank in four]
    assert spread[:2] == [saved[0], saved[2]]
    assert all(len({drawn[of] for drawn in spread}) == 4 for of in range(2))
    assert [rank["draw=tp"] for rank in four] == [saved[0]] * 4


def test_a_position_of_each_rank_is_not_taken_to_another_mesh(four: Told) -> None:
    """As many ranks on another mesh see other data: what each had of its own is refused, as with fewer."""
    for number, rank in enumerate(four):
        assert rank["restore=#differs"].startswith("StoreError: position differed on each of the 4 ranks")
        assert rank["restore=#same"].startswith("step-")
        assert rank["note=uneven"]["at"] == 100 * number
