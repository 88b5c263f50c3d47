# SPDX-License-Identifier: Apache-2.0
"""Launchers, wrappers, helpers and bystanders, and who is told in their families."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from spotwatch.errors import ActionError
from spotwatch.targets._choice import (
    Leaves,
    choose,
    is_bystander,
    is_helper,
    is_launcher,
    is_likely,
    is_python,
    is_wrapper,
)
from spotwatch.targets._proc import Proc, Row

LAUNCHERS = [
    "torchrun --nproc-per-node 2 train.py",
    "/venv/bin/python /venv/bin/torchrun --nproc-per-node 8 train.py",
    "python -m torch.distributed.run --nproc_per_node=2 train.py",
    "python3.11 -u -m torch.distributed.launch train.py",
    "python -W ignore -X dev -m torch.distributed.run train.py",
    "python -um torch.distributed.run train.py",
    "python /venv/lib/python3.11/site-packages/torch/distributed/run.py train.py",
    "python torch/distributed/launch.py train.py",
    "/venv/bin/python3 /venv/bin/accelerate launch --num_processes 2 train.py",
    "python -m accelerate.commands.launch train.py",
    "python -m accelerate launch train.py",
    "/venv/bin/accelerate-launch train.py",
    "/usr/bin/python /usr/bin/deepspeed --num_gpus 2 train.py",
    "/usr/bin/python -u -m deepspeed.launcher.launch --world_info=x train.py",
]
NOT_LAUNCHERS = [
    "python train.py",
    "python -m trainer torchrun",
    "python train.py --launcher torchrun",
    "python -c import(torch.distributed.run)",
    "/venv/bin/accelerate config",
    "python -m accelerate test",
    "python torchrun_wrapper.py",
    "bash run_torchrun.sh",
    "",
]


def args(text: str) -> tuple[str, ...]:
    """Return a command line without quotes as arguments."""
    return tuple(text.split())


def row(
    pid: int, ppid: int, command: str, *, comm: str = "", state: str = "S", catches: tuple[int, ...] = ()
) -> Row:
    """Return a process as /proc would show it."""
    proc = Proc(pid=pid, start_ticks=pid, uid=1000, gid=1000, command=command)
    caught = sum(1 << (signum - 1) for signum in catches)
    return Row(proc=proc, ppid=ppid, state=state, comm=comm, argv=args(command), caught=caught)


def chosen(
    leaves: Leaves, *rows: Row, ranks: Mapping[int, str] | None = None, pattern: str = "\0"
) -> list[int]:
    """Return the pids told when the first of `rows` was found."""
    table = {one.pid: one for one in rows}
    told = choose(
        rows[0],
        table,
        leaves,
        lambda one: pattern in one.proc.command,
        lambda pid, name: (ranks or {}).get(pid) if name == "LOCAL_RANK" else None,
    )
    return [one.pid for one in told]


@pytest.mark.parametrize("command", LAUNCHERS)
def test_launchers_are_known(command: str) -> None:
    """Each way of starting ranks is recognised by its command line."""
    assert is_launcher(args(command))
    assert is_likely(args(command))
    assert not is_bystander(args(command))


@pytest.mark.parametrize("command", NOT_LAUNCHERS)
def test_what_only_mentions_a_launcher_is_none(command: str) -> None:
    """A word among the arguments starts no ranks."""
    assert not is_launcher(args(command))


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("/bin/sh -c train.py", True),
        ("-bash", True),
        ("/usr/bin/sudo -u train python train.py", True),
        ("timeout 3600 python train.py", True),
        ("/sbin/tini -- python train.py", True),
        ("uv run train.py", True),
        ("python train.py", False),
        ("python /usr/bin/bash", False),
        ("./train", False),
        ("", False),
    ],
)
def test_wrappers_are_known(command: str, expected: bool) -> None:
    """A shell or sudo may keep a signal for itself."""
    assert is_wrapper(args(command)) is expected


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("vim train.py", True),
        ("/usr/bin/tail -f train.py.log", True),
        ("tmux new -d python train.py", True),
        ("SCREEN -dmS t python train.py", True),
        ("ssh gpu-1 python train.py", True),
        ("docker run image python train.py", True),
        ("/venv/bin/python /venv/bin/spotwatch exec -- python train.py", True),
        ("python -m spotwatch run --config train.py.toml", True),
        ("spotwatch status", True),
        ("python train.py --logger spotwatch", False),
        ("python /home/spotwatch/train.py", False),
        ("python -c import(spotwatch)", False),
        ("python vim", False),
        ("", False),
    ],
)
def test_bystanders_are_known(command: str, expected: bool) -> None:
    """Who only mentions a trainer, as an editor or our own commands do, is never told."""
    assert is_bystander(args(command)) is expected


@pytest.mark.parametrize(
    "name", ["python", "/usr/bin/python3", "python3.13", "pypy3", "/v/bin/python3.11-dbg"]
)
def test_interpreters_are_known(name: str) -> None:
    """The version and the folder do not matter."""
    assert is_python((name, "train.py"))
    assert not is_python((f"{name}-config",)) or name.endswith("-dbg")


@pytest.mark.parametrize(
    "helper",
    [
        row(3, 2, "python train.py"),
        row(3, 2, "python -c from@multiprocessing.spawn --multiprocessing-fork"),
        row(3, 1, "python train.py", comm="pt_data_worker"),
        row(3, 2, "python /v/torch/_inductor/compile_worker/__main__.py --workers=8"),
        row(3, 2, "python -m joblib.externals.loky.backend.popen_loky_posix --pipe 3"),
    ],
)
def test_helpers_are_known(helper: Row) -> None:
    """A trainer's forked copies and multiprocessing's processes are not trainers, orphaned or not."""
    assert is_helper(helper, row(2, 1, "python train.py"))


@pytest.mark.parametrize(
    "code", ["spawn import spawn_main", "forkserver import main", "resource_tracker import main"]
)
def test_helpers_of_multiprocessing_are_known_by_their_code(code: str) -> None:
    """The standard library starts them with `-c`."""
    one = row(3, 2, "python")
    helper = Row(
        proc=one.proc,
        ppid=2,
        state="S",
        comm="python",
        argv=("python", "-c", f"from multiprocessing.{code}; x"),
    )
    assert is_helper(helper, None)
    assert not is_helper(row(3, 2, "python train.py --x"), row(2, 1, "python train.py"))
    assert not is_helper(row(3, 2, "./train"), row(2, 1, "./train"))


def test_a_plain_trainer_is_told_itself() -> None:
    """Its workers are not."""
    family = (row(2, 1, "python train.py"), row(3, 2, "python train.py"), row(4, 2, "nvidia-smi"))
    assert chosen("auto", *family) == [2]
    assert chosen("never", *family) == [2]


def test_below_a_launcher_the_ranks_are_told() -> None:
    """Only children with LOCAL_RANK: not a helper, not a rank's worker, which inherits the variable."""
    ranks = {3: "0", 4: "1", 6: "0", 7: "1"}
    family = (
        row(2, 1, "python /v/torchrun train.py"),
        row(4, 2, "python train.py"),
        row(3, 2, "python train.py"),
        row(5, 2, "python -c from@multiprocessing --multiprocessing-fork"),
        row(6, 3, "python train.py"),
        row(7, 2, "python -c x --multiprocessing-fork"),
    )
    assert chosen("auto", *family, ranks=ranks) == [3, 4]
    assert chosen("always", *family, ranks=ranks) == [3, 4]
    assert chosen("never", *family, ranks=ranks) == [2]


def test_ranks_are_found_when_the_launcher_has_a_rank_too() -> None:
    """A launcher started by another one inherits LOCAL_RANK, and its rank 0 has the same."""
    ranks = {2: "0", 3: "0", 4: "1"}
    family = (row(2, 1, "torchrun train.py"), row(3, 2, "python train.py"), row(4, 2, "python train.py"))
    assert chosen("auto", *family, ranks=ranks) == [3, 4]


def test_without_ranks_the_python_below_a_launcher_is_told() -> None:
    """`accelerate launch` with one process sets no LOCAL_RANK, and some environments are not ours to read."""
    family = (
        row(2, 1, "python /v/accelerate launch train.py"),
        row(3, 2, "python train.py"),
        row(4, 3, "python train.py"),
        row(5, 2, "nvidia-smi dmon"),
    )
    assert chosen("auto", *family) == [3]


def test_launchers_and_wrappers_are_gone_through_to_the_end() -> None:
    """The one of deepspeed starts its launcher, that starts shells, those start the ranks."""
    ranks = {4: "0", 5: "1", 6: "0", 7: "1"}
    family = (
        row(1001, 1, "bash run.sh"),
        row(2, 1001, "python /v/deepspeed train.py"),
        row(3, 2, "python -m deepspeed.launcher.launch train.py"),
        row(4, 3, "bash -c x"),
        row(5, 3, "bash -c x"),
        row(6, 4, "python train.py"),
        row(7, 5, "python train.py"),
    )
    assert chosen("auto", *family, ranks=ranks) == [6, 7]


def test_a_launcher_without_ranks_is_not_told_itself() -> None:
    """Before the ranks run, and between two restarts, nobody is there to save."""
    family = (row(2, 1, "torchrun train.py"), row(3, 2, "python x --multiprocessing-fork"))
    with pytest.raises(ActionError, match=r"pid 2 \(torchrun\) runs nothing at the moment"):
        chosen("auto", *family)


@pytest.mark.parametrize(
    ("children", "pattern", "expected"),
    [
        (["python train.py", "tee train.log"], "train", [10]),
        (["python train.py", "sleep 60"], "\0", [10]),
        (["sleep 60", "python train.py", "python eval.py"], "train", [11]),
        (["python a.py", "python b.py"], "\0", [10, 11]),
        (["./train --big"], "\0", [10]),
        (["./train --big", "./log"], "train", [10]),
        (["tail -f log", "./other"], "\0", [11]),
    ],
)
def test_below_a_shell_the_trainer_is_told(children: list[str], pattern: str, expected: list[int]) -> None:
    """What fits the pattern and can be a trainer goes first, then python, then the only one."""
    rows = [row(10 + i, 2, command) for i, command in enumerate(children)]
    assert chosen("auto", row(2, 1, "sh -c x"), *rows, pattern=pattern) == expected


@pytest.mark.parametrize(
    ("children", "message"),
    [
        ([], "runs nothing at the moment"),
        ([row(3, 2, "tee log")], "runs nothing at the moment"),
        ([row(3, 2, "python train.py", state="Z")], "runs nothing at the moment"),
        ([row(3, 2, "./a"), row(4, 2, "./b")], "runs 2 processes and none is python"),
    ],
)
def test_a_shell_is_not_told_in_doubt(children: list[Row], message: str) -> None:
    """A guess could stop the wrong one."""
    with pytest.raises(ActionError, match=message):
        chosen("auto", row(2, 1, "sh -c x"), *children)


def test_always_goes_below_what_is_no_known_launcher() -> None:
    """For launchers of one's own; without anyone below it that is an error."""
    ranks = {3: "0", 4: "1"}
    head = row(2, 1, "python mylauncher.py")
    assert chosen(
        "always", head, row(3, 2, "python train.py"), row(4, 2, "python train.py"), ranks=ranks
    ) == [3, 4]
    with pytest.raises(ActionError, match="runs nothing"):
        chosen("always", head, row(5, 2, "python mylauncher.py"), ranks=ranks)


def test_lightnings_ranks_are_copies_with_their_own_rank() -> None:
    """Its rank 0 starts the others with its own command line; a forked worker has no rank of its own."""
    ranks = {3: "1"}
    head = row(2, 1, "python train.py")
    family = (head, row(3, 2, "python train.py"), row(4, 2, "python train.py"))
    assert chosen("always", *family, ranks=ranks) == [3]
    assert chosen("auto", *family, ranks=ranks) == [2]


def test_a_family_that_bites_its_tail_ends() -> None:
    """Shells within shells are followed to a depth, never for ever."""
    rows = [row(2 + i, 1 + i, "sh -c x") for i in range(30)]
    assert len(chosen("auto", *rows)) == 1
