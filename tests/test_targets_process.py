# SPDX-License-Identifier: Apache-2.0
"""Trainers found by their command line, among shells, launchers, workers and bystanders that are real."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotwatch.config import TargetSettings
from spotwatch.errors import ActionError
from spotwatch.targets import Remembering, Target, is_alive, make_targets
from tests.families import NOBODY, Family, family, needs_root, wait_for


@pytest.fixture
def fam(tmp_path: Path) -> Iterator[Family]:
    """Give the test processes of its own."""
    with family(tmp_path) as one:
        yield one


def target_of(fam: Family, **settings: object) -> Target:
    """Return a target for the family's script."""
    one = TargetSettings(process=fam.pattern, **settings)  # type: ignore[arg-type]
    (target,) = make_targets((one,), None)
    return target


async def stop(target: Target) -> str:
    """Find and stop."""
    return await target.stop(target.find())


async def test_a_trainer_is_told_whoever_mentions_it(fam: Family, tmp_path: Path) -> None:
    """A pager on the script is no trainer."""
    pager = fam.start(["tail", "-f", str(fam.script)], stdout=-3)
    target = target_of(fam)
    with pytest.raises(ActionError, match="no process matches"):
        target.find()
    assert target.owner() is None
    assert isinstance(target, Remembering)
    assert not target.was_found
    process = fam.start(fam.trainer(), trainers=1)
    assert target.owner() == (os.geteuid(), os.getegid())
    assert [proc.pid for proc in target.find()] == [process.pid]
    assert str(process.pid) in await stop(target)
    assert process.wait() == 75
    assert pager.poll() is None
    assert target.was_found


async def test_all_of_several_trainers_are_told(fam: Family) -> None:
    """Each of them has something to lose."""
    two = [fam.start(fam.trainer(str(n)), trainers=1) for n in range(2)]
    assert [proc.pid for proc in target_of(fam).find()] == sorted(p.pid for p in two)
    await stop(target_of(fam))
    assert [process.wait() for process in two] == [75, 75]


async def test_a_compiled_trainer_is_told_unless_a_python_matches_too(fam: Family, tmp_path: Path) -> None:
    """Not every trainer is python; where one is, other programs with its name in their words are not told."""
    compiled = tmp_path / "compiled_trainer"
    compiled.symlink_to("/bin/sleep")
    process = fam.start([str(compiled), "60"])
    (target,) = make_targets((TargetSettings(process=str(tmp_path)),), None)
    assert [proc.pid for proc in target.find()] == [process.pid]
    fam.start(fam.trainer(), trainers=1)
    assert [proc.pid for proc in target.find()] == fam.ready()


@pytest.mark.parametrize("shell", ["dash", "bash"])
@pytest.mark.parametrize("form", ["simple", "pipe", "list"])
async def test_a_shell_around_the_trainer_is_not_told(fam: Family, shell: str, form: str) -> None:
    """SIGTERM would end the shell and leave the trainer unaware (dash never replaces itself)."""
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    command = {"simple": "{}", "pipe": "{} | cat; true", "list": "{}; code=$?; exit $code"}[form]
    line = command.format(" ".join(fam.trainer()))
    process = fam.start([shell, "-c", line], trainers=1)
    procs = target_of(fam).find()
    assert [proc.pid for proc in procs] == fam.ready()
    await stop(target_of(fam))
    wait_for(lambda: not is_alive(procs[0]))
    assert fam.told() == fam.ready()
    assert process.wait() == (0 if form == "pipe" else 75)


async def test_a_script_is_gone_through_to_its_trainer(fam: Family, tmp_path: Path) -> None:
    """The pattern fits the script only: of what it runs, python is the trainer."""
    script = tmp_path / "launch_it.sh"
    script.write_text(f"sleep 60 &\n{' '.join(fam.trainer())}\n")
    fam.start(["bash", str(script)], trainers=1)
    (target,) = make_targets((TargetSettings(process=str(script)),), None)
    assert [proc.pid for proc in target.find()] == fam.ready()
    (target,) = make_targets((TargetSettings(process=str(script), leaves="never"),), None)
    assert [proc.pid for proc in target.find()] == [fam.started[0].pid]


async def test_workers_and_copies_are_never_told(fam: Family) -> None:
    """What a trainer forks or spawns has its command line or multiprocessing's, and SIGTERM would kill it."""
    code = (
        "import multiprocessing, os, signal, sys, time\n"
        "def work(path):\n"
        "    open(path, 'a').write(f'READY {os.getpid()}\\n'); time.sleep(60)\n"
        "if __name__ == '__main__':\n"
        "    signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))\n"
        "    for how in ('fork', 'spawn', 'forkserver'):\n"
        "        context = multiprocessing.get_context(how)\n"
        "        context.Process(target=work, args=(sys.argv[1],), daemon=True).start()\n"
        "    open(sys.argv[1], 'a').write(f'READY {os.getpid()}\\n')\n"
        "    time.sleep(60)\n"
    )
    fam.script.write_text(code)
    process = fam.start(fam.trainer(), trainers=4)
    assert len(set(fam.ready())) == 4
    assert [proc.pid for proc in target_of(fam).find()] == [process.pid]
    # Also when the pattern would rather have the workers.
    (target,) = make_targets((TargetSettings(process="multiprocessing|" + fam.pattern),), None)
    assert process.pid in [proc.pid for proc in target.find()]
    assert not set(fam.ready()) - {process.pid} & {proc.pid for proc in target.find()}
    await stop(target_of(fam))
    assert process.wait() == 75


async def test_a_match_below_a_match_is_a_part_of_it(fam: Family) -> None:
    """A python that starts another one is told alone; it knows what to do with its own."""
    code = f"import subprocess, sys; sys.exit(subprocess.call({fam.trainer()!r}))"
    process = fam.start([sys.executable, "-c", code], trainers=1)
    assert [proc.pid for proc in target_of(fam).find()] == [process.pid]


async def test_our_own_commands_do_not_match(fam: Family, tmp_path: Path) -> None:
    """`spotwatch exec -- python train.py` has the trainer's words in its own; the trainer is below it."""
    ours = tmp_path / "spotwatch"
    ours.write_text("import subprocess, sys; sys.exit(subprocess.call(sys.argv[3:]))")
    process = fam.start([sys.executable, str(ours), "exec", "--", *fam.trainer()], trainers=1)
    assert [proc.pid for proc in target_of(fam).find()] == fam.ready()
    await stop(target_of(fam))
    assert process.wait() == 75


async def test_who_started_us_does_not_match(fam: Family, tmp_path: Path) -> None:
    """A script that starts trainer and daemon, or a test that starts everything, is not the trainer."""
    code = (
        "import sys; from spotwatch.config import TargetSettings; from spotwatch.errors import ActionError\n"
        "from spotwatch.targets import make_targets\n"
        "try: print(make_targets((TargetSettings(process=sys.argv[1]),), None)[0].find())\n"
        "except ActionError as error: print(error)"
    )
    outer = "import subprocess, sys; subprocess.call([sys.executable, '-c', sys.argv[1], 'who-started-[u]s'])"
    out = tmp_path / "out"
    with out.open("wb") as file:
        process = fam.start([sys.executable, "-c", outer, code, "who-started-us"], stdout=file)
    assert process.wait() == 0
    assert "no process matches" in out.read_text()


async def test_one_that_vanishes_between_find_and_stop_is_fine(fam: Family) -> None:
    """Gone is what a stop wants."""
    two = [fam.start(fam.trainer(str(n)), trainers=1) for n in range(2)]
    target = target_of(fam)
    procs = target.find()
    two[0].kill()
    two[0].wait()
    said = await target.stop(procs)
    assert f"SIGTERM to pid {two[1].pid}" in said
    assert f"pid {two[0].pid} already gone" in said
    assert two[1].wait() == 75


@needs_root
async def test_users_are_told_apart(fam: Family) -> None:
    """With `user`, others' processes do not count; without, root means anyone's."""
    mine = fam.start(fam.trainer("mine"), trainers=1)
    theirs = fam.start(fam.trainer("theirs"), trainers=1, env={"TRAIN_UID": str(NOBODY)})
    assert len(target_of(fam).find()) == 2
    target = target_of(fam, user=str(NOBODY))
    assert target.label.endswith(f" of {NOBODY}")
    assert [proc.pid for proc in target.find()] == [theirs.pid]
    assert target.owner() is not None
    with pytest.raises(ActionError, match=rf"of uid 4242; uid 0, {NOBODY} has some: set `user`"):
        target_of(fam, user="4242").find()
    await stop(target)
    assert theirs.wait() == 75
    assert mine.poll() is None


async def test_a_part_that_cannot_be_told_does_not_spare_the_rest(fam: Family) -> None:
    """One process became another since it was found: the other is told all the same, and the failure said."""
    two = [fam.start(fam.trainer(str(n)), trainers=1) for n in range(2)]
    target = target_of(fam)
    first, second = target.find()
    changed = type(first)(**{**first.to_json(), "command": "another"})  # type: ignore[arg-type]
    with pytest.raises(ActionError, match=f"another user or command line.*SIGTERM to pid {second.pid}"):
        await target.stop((changed, second))
    by_pid = {process.pid: process for process in two}
    assert by_pid[second.pid].wait() == 75
    assert by_pid[first.pid].poll() is None
    by_pid[first.pid].send_signal(signal.SIGTERM)
