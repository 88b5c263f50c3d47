# SPDX-License-Identifier: Apache-2.0
"""What several processes agree on through torch.distributed: the scenes are in `workers/ranks_run.py`."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from spotwatch.errors import ConfigError
from spotwatch.train.ranks.ranks import open_world
from spotwatch.train.world import Alone
from tests.train.launching import ranks

pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(240)

_SCENES = [
    *("any_rank", "stop", "fresh", "stride", "jumps", "slow", "now"),
    *("uneven", "uneven_now", "told_late", "long_step", "values", "different_steps"),
]


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return what each of three ranks saw in each scene."""
    return ranks(3, "ranks_run.py", tmp_path_factory.mktemp("three") / "out", *_SCENES)


def test_any_rank_is_heard_by_all_at_the_same_step(three: list[dict[str, Any]]) -> None:
    """What the last rank wishes after step 4 is decided at step 5; only the first rank's clock counts."""
    assert [rank["any_rank"] for rank in three] == [[[5, ["flush"]], [9, ["due"]]]] * 3


def test_a_stop_on_one_rank_ends_all_loops_at_the_same_step(three: list[dict[str, Any]]) -> None:
    """Once stopped, nobody waits for anybody: settling says at once what was decided."""
    assert [rank["stop"] for rank in three] == [[[[4, ["stop"]]], ["stop"]]] * 3


def test_what_was_just_done_is_not_decided_again(three: list[dict[str, Any]]) -> None:
    """The round after a save knows that the order was answered, and that a rank is busy with it."""
    assert [rank["fresh"] for rank in three] == [[5, [6, ["busy"]], [7, ["busy"]], [8, ["busy"]]]] * 3


def test_ranks_begin_their_rounds_at_the_same_steps(three: list[dict[str, Any]]) -> None:
    """Short steps share rounds; which of them have one follows from what was agreed, not from a clock."""
    assert three[0]["stride"] == three[1]["stride"] == three[2]["stride"]
    assert three[0]["stride"][:2] == [2, 3]
    assert len(three[0]["stride"]) < 199


def test_steps_may_go_up_by_more_than_one(three: list[dict[str, Any]]) -> None:
    """A program that counts by tens decides one of its own steps later."""
    assert [rank["jumps"] for rank in three] == [[50]] * 3


def test_long_steps_are_decided_at_once(three: list[dict[str, Any]]) -> None:
    """Where a step takes long, what was learned during it is not put off to the end of the next."""
    assert [rank["slow"] for rank in three] == [[[5, ["flush"]]]] * 3


def test_a_round_can_be_asked_for(three: list[dict[str, Any]]) -> None:
    """A save that all ranks know to be due is decided at its step, and all hear that one is still busy."""
    assert [rank["now"] for rank in three] == [[[5, ["due"]], [10, ["due", "busy"]]]] * 3


def test_a_rank_that_has_left_its_loop_saves_with_the_others(three: list[dict[str, Any]]) -> None:
    """With uneven data the short rank takes part in a save, and leaves with the others, not before."""
    inside = [[7, ["flush"]], ["settled", []]]
    assert [rank["uneven"] for rank in three] == [inside, [["settled", ["flush"]], ["settled", []]], inside]


def test_a_rank_that_has_left_its_loop_knows_of_saves_that_are_due(three: list[dict[str, Any]]) -> None:
    """It does not count the steps of the others, and takes part all the same."""
    inside = [[5, ["due"]], ["settled", []]]
    assert [rank["uneven_now"] for rank in three] == [inside, [["settled", ["due"]], ["settled", []]], inside]


def test_an_order_that_comes_after_the_last_step_is_heard(three: list[dict[str, Any]]) -> None:
    """A rank that waits for the others is asked again and again, and its stop ends their loops."""
    assert [rank["told_late"] for rank in three] == [["stop"]] * 3


def test_a_long_step_on_one_rank_changes_nothing(three: list[dict[str, Any]]) -> None:
    """The others wait for it, and an order of theirs is decided once, at the same step."""
    assert [rank["long_step"] for rank in three] == [[[4, ["flush"]]]] * 3


def test_everyone_has_everyones_values(three: list[dict[str, Any]]) -> None:
    """Values of any length arrive by rank, from the training and the saving thread at once."""
    for number, rank in enumerate(three):
        *values, who = rank["values"]
        assert values == [[0, 1, 2], [10, 40_000, 40_000], [5000] * 3, [None] * 3]
        assert who == [number == 0, number == 0, 3]


def test_ranks_that_count_differently_all_hear_it(three: list[dict[str, Any]]) -> None:
    """No rank is left waiting for another when the program is wrong."""
    assert {rank["different_steps"][:41] for rank in three} == {"ConfigError: step(): the ranks are at dif"}


def test_a_rank_that_dies_is_noticed(tmp_path: Path) -> None:
    """The other ranks get an error at once, not at the end of a time limit of hours."""
    told, seconds = ranks(2, "ranks_run.py", tmp_path / "out", "again", "raises")[0]["raises"]
    assert re.match(
        r"RankGone: a rank of this run has gone: it was waited for in \w+\(\) at .*ranks_run", told
    )
    assert "24 hours" not in told
    assert seconds < 60


def test_leaving_waits_for_nobody_for_long(tmp_path: Path) -> None:
    """A round that the others never answer is given up, and a world that was closed can be opened again."""
    first, second = ranks(2, "ranks_run.py", tmp_path / "out", "again", "closes")
    assert first["again"] == second["again"] == [0, 1]
    assert 0.2 <= first["closes"] < 60


@pytest.mark.parametrize("environ", [{}, {"WORLD_SIZE": ""}, {"WORLD_SIZE": "1"}])
def test_one_process_is_alone(environ: dict[str, str]) -> None:
    """Without a launcher, or with one rank, nobody is asked."""
    assert isinstance(open_world(environ), Alone)


def test_each_rank_may_be_a_run_of_its_own() -> None:
    """A sweep under a launcher says so, and needs no process group."""
    assert isinstance(open_world({"WORLD_SIZE": "8"}, 1), Alone)


@pytest.mark.parametrize("with_torch", [False, True])
def test_ranks_that_are_not_connected_are_told_how(
    monkeypatch: pytest.MonkeyPatch, *, with_torch: bool
) -> None:
    """The error says what to call, or what to pass, also where torch was never imported."""
    if not with_torch:
        monkeypatch.delitem(sys.modules, "torch.distributed", raising=False)
    with pytest.raises(
        ConfigError, match=r"2 ranks, .*init_process_group\(\) before resume\(\).*world_size=1"
    ):
        open_world({"WORLD_SIZE": "2"})


@pytest.mark.parametrize("size", ["two", "0", "-1", "1.5"])
def test_a_world_size_that_is_none_is_refused(size: str) -> None:
    """The message names the variable and its value."""
    with pytest.raises(ConfigError, match=f"WORLD_SIZE='{size}'"):
        open_world({"WORLD_SIZE": size})


@pytest.mark.parametrize("size", ["1", "two", 0, -1, 1.0, True])
def test_a_world_size_that_is_given_and_is_none_is_refused(size: Any) -> None:
    """The message names the argument and its value, whatever the launcher says."""
    for environ in ({}, {"WORLD_SIZE": "1"}):
        with pytest.raises(ConfigError, match=f"world_size={size!r}: wants a whole number, at least 1"):
            open_world(environ, size)
