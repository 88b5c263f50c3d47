# SPDX-License-Identifier: Apache-2.0
"""What a program gives to the Checkpointer: taken as it is meant, or refused before anything is lost."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spotwatch.errors import ConfigError
from spotwatch.train import Checkpointer, arguments

from .conftest import Make, dirs, train

pytestmark = pytest.mark.usefixtures("handlers_come_back")


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"run_id": ""}, "run_id"),
        ({"run_id": "../x"}, "run_id"),
        ({"url": None}, "SPOTWATCH_CHECKPOINT_URL"),
        ({"run_id": 5}, "run_id 5"),
        ({"url": 5}, "checkpoint URL 5"),
        ({"keep": 0}, "keep=0"),
        ({"keep": 1.5}, r"keep=1\.5"),
        ({"keep": True}, "keep=True"),
        ({"give_up_after": 0}, "give_up_after=0"),
        ({"patience_seconds": -1}, "patience_seconds=-1"),
        ({"patience_seconds": "60"}, "patience_seconds='60'"),
        ({"every_steps": 1.5}, r"every_steps=1\.5"),
        ({"every_steps": "5"}, "every_steps='5'"),
        ({"every_steps": 0}, "every_steps=0"),
        ({"every_seconds": "5"}, "every_seconds='5'"),
        ({"every_seconds": 0}, "every_seconds=0"),
        ({"every_seconds": float("nan")}, "every_seconds=nan"),
        ({"every_steps": 1, "every_seconds": 1}, "not both"),
    ],
)
def test_bad_arguments(environ: dict[str, str], options: dict[str, Any], wanted: str) -> None:
    """Each is refused with what is wanted."""
    with pytest.raises(ConfigError, match=wanted):
        Checkpointer(**{"url": "/tmp/x", "run_id": "run", "environ": environ, **options})


def test_a_url_that_names_a_file_is_refused_at_once(make: Make, tmp_path: Path) -> None:
    """Resuming does not ask a mistake again for as long as it asks a store, and nothing is written."""
    file = tmp_path / "model.pt"
    file.write_bytes(b"weights")
    ck, _ = make(url=file, patience_seconds=float("inf"))
    with pytest.raises(ConfigError, match=r"model\.pt is no directory; name one"):
        ck.resume()
    assert file.read_bytes() == b"weights"


def test_numbers_of_other_libraries_are_taken(make: Make, tmp_path: Path) -> None:
    """Sweeps hand over numpy's numbers, and infinite patience is patience."""
    options = {"every_steps": np.int64(2), "keep": np.int32(9), "patience_seconds": float("inf")}
    train(*make(**options, give_up_after=np.uint8(3)), 4)
    assert len(dirs(tmp_path)) == 2
    make(every_seconds=np.float32(0.5))
    make(every_seconds=10**400)


@pytest.mark.parametrize("kind", [np.int64, np.uint8, "torch"])
def test_a_step_of_another_library_is_a_step(make: Make, kind: Any) -> None:
    """What counts as an index in Python counts here, periodically and at the last save."""
    if kind == "torch":
        kind = pytest.importorskip("torch").tensor
    ck, counter = make(every_steps=2)
    ck.resume()
    with ck:
        for step in range(5):
            counter.train(step)
            if step == 4:
                os.kill(os.getpid(), signal.SIGTERM)
            assert ck.step(kind(step + 1)) is (step == 4)
    assert ck.exit_code == 75
    again, counter = make()
    assert (again.resume(), counter.steps) == (5, [0, 1, 2, 3, 4])


NO_STEPS = [
    1.0,
    np.float64(1),
    float("nan"),
    "1",
    None,
    True,
    -1,
    10**15,
    10**18,
    pytest.param(10**5000, id="huge"),
    np.int64(10**18),
]


@pytest.mark.parametrize("step", NO_STEPS)
def test_what_is_no_step_is_refused_at_the_first(make: Make, step: Any) -> None:
    """Not at the first save, and not at the last one."""
    ck, _ = make(every_steps=1000)
    ck.resume()
    for use in (ck.step, ck.save):
        with pytest.raises(ConfigError, match="whole number of finished steps"):
            use(step)


@pytest.mark.parametrize("step", NO_STEPS)
def test_what_is_no_step_is_refused_when_nothing_is_due(make: Make, tmp_path: Path, step: Any) -> None:
    """A loop that counts wrongly is told at once; what it did before is saved when it goes on."""
    ck, counter = make(every_steps=1000)
    ck.resume()
    with ck:
        counter.train(0)
        assert not ck.step(1)
        with pytest.raises(ConfigError, match=r"whole number of finished steps, 0 to 999999999999999$"):
            ck.step(step)
    assert [name.partition("-")[2][:9] for name in dirs(tmp_path)] == ["000000001"]


def test_the_highest_step_is_saved_and_found(make: Make) -> None:
    """It is as wide as the name of a checkpoint allows, and a step more is none."""
    highest = 10**15 - 1
    ck, _ = make()
    ck.resume()
    with ck:
        assert not ck.step(highest)
    assert make()[0].resume() == highest


@pytest.mark.parametrize("value", ["x" * 1000, pytest.param(-(10**5000), id="huge")])
def test_an_absurd_value_is_shown_in_short(value: Any) -> None:
    """A message is one line, and there is one whatever was given."""
    with pytest.raises(ConfigError, match=r"^keep=.*wants a whole number, at least 1$") as told:
        arguments.whole("keep", value)
    assert len(str(told.value)) < 200


@pytest.mark.parametrize("value", [0.999, np.float32(0.5), 1e-300])
def test_a_time_that_is_too_short_is_refused(value: Any) -> None:
    """What cannot work is said at once, with what would."""
    with pytest.raises(ConfigError, match=r"lease_seconds=.*: wants seconds, at least 1$"):
        arguments.seconds("lease_seconds", value, least=1.0)
    assert arguments.seconds("lease_seconds", 1, least=1.0) == 1.0
