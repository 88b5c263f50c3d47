# SPDX-License-Identifier: Apache-2.0
"""Real torch: the ranks of torchrun are told, and the workers of a DataLoader never."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotwatch.config import TargetSettings
from spotwatch.targets import make_targets
from spotwatch.targets._proc import read_table
from tests.families import Family, family, wait_for

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")

# Two ranks that agree on a stop, save, and exit 75, which torchrun turns into 1.
RANK = """
import os, signal, sys, time
import torch, torch.distributed as dist
told = []
def tell(signum, frame):
    told.append(signum)
    open(sys.argv[1], "a").write(f"TOLD {os.getpid()} SIGTERM\\n")
signal.signal(signal.SIGTERM, tell)
dist.init_process_group("gloo")
open(sys.argv[1], "a").write(f"READY {os.getpid()}\\n")
while True:
    flag = torch.tensor([len(told)])
    dist.all_reduce(flag)
    if flag.item() >= 2:
        break
    time.sleep(0.02)
open(sys.argv[1], "a").write(f"SAVED {os.getpid()} {os.environ['LOCAL_RANK']}\\n")
os._exit(75)
"""

LOADER = """
import os, signal, sys
import torch
from torch.utils.data import DataLoader, Dataset
class Numbers(Dataset):
    def __len__(self):
        return 10**9
    def __getitem__(self, n):
        return torch.tensor(n)
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(1))
for n, batch in enumerate(DataLoader(Numbers(), num_workers=2)):
    if n == 3:
        open(sys.argv[1], "a").write(f"READY {os.getpid()}\\n")
    if told:
        break
open(sys.argv[1], "a").write(f"SAVED {os.getpid()} 0\\n")
os._exit(75)
"""


@pytest.fixture
def fam(tmp_path: Path) -> Iterator[Family]:
    """Give the test processes of its own."""
    with family(tmp_path) as one:
        yield one


async def test_under_torchrun_the_ranks_are_told_and_not_the_launcher(fam: Family) -> None:
    """Both save in their own time; the launcher only sees them end."""
    fam.script.write_text(RANK)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    with (fam.folder / "log").open("wb") as log:
        process = fam.start(
            [*launch, str(fam.script), str(fam.said)],
            trainers=2,
            env={"OMP_NUM_THREADS": "1"},
            stdout=log,
            stderr=log,
        )
    (target,) = make_targets((TargetSettings(process=fam.pattern),), None)
    procs = target.find()
    assert [proc.pid for proc in procs] == sorted(fam.ready())
    assert process.pid not in [proc.pid for proc in procs]
    await target.stop(procs)
    assert process.wait() == 1
    # Whichever rank ends first has the launcher end the other, which may be told twice on its way out.
    assert set(fam.told()) == set(fam.ready())
    assert sorted(words[2] for words in fam.words("SAVED")) == ["0", "1"]
    assert "death signal" not in (fam.folder / "log").read_text()


async def test_a_dataloaders_workers_are_never_told(fam: Family) -> None:
    """SIGTERM to one of them would lose the last save: "DataLoader worker is killed by signal"."""
    fam.script.write_text(LOADER)
    process = fam.start(
        [sys.executable, str(fam.script), str(fam.said)], trainers=1, env={"OMP_NUM_THREADS": "1"}
    )
    workers = [row for row in read_table().values() if row.ppid == process.pid]
    assert len([row for row in workers if fam.script.name in row.proc.command]) == 2
    (target,) = make_targets((TargetSettings(process=fam.pattern),), None)
    procs = target.find()
    assert [proc.pid for proc in procs] == [process.pid]
    await target.stop(procs)
    assert process.wait() == 75
    wait_for(lambda: fam.words("SAVED"))
