# SPDX-License-Identifier: Apache-2.0
"""The programs on the page on checkpointing and in the README: run as printed, stopped, and run again."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from .loader_world import Plain

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.usefixtures("handlers_come_back"),
    # A life that begins at the end of an epoch.
    pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step:UserWarning"),
]

_ROOT = Path(__file__).parents[2]
_STEPS = 8
_EPOCHS = 3
_SAMPLES = 70  # three batches of 32


class Pairs(Plain):
    """Samples with targets."""

    def __getitem__(self, number: int) -> Any:
        return torch.tensor([float(number)]), number


class Trainer:
    """What the programs take as given, and each step's loss and rate."""

    def __init__(self, rows: list[Any], stop_at: int | None) -> None:
        torch.manual_seed(3)
        self.model = torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.Dropout(0.3), torch.nn.Linear(4, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, 0.5)
        self._rows = rows
        self._stop_at = stop_at

    def train(self, inputs: Any, _targets: Any = None) -> Any:
        """Take a step, during which the stop comes."""
        loss = self.model(inputs / _SAMPLES).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self._rows.append((float(loss.detach()), self.scheduler.get_last_lr()))
        if len(self._rows) == self._stop_at:
            os.kill(os.getpid(), signal.SIGTERM)
        return loss.detach()

    def names(self) -> dict[str, Any]:
        """Return what the programs use and do not make."""
        return {
            "model": self.model,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
            "scaler": None,
            "loader": None,
            "dataset": Pairs(_SAMPLES),
            "epochs": _EPOCHS,
            "total_steps": _STEPS,
            "train_batch": self.train,
            "train_one_step": lambda step=0: self.train(torch.full((4, 1), float(step))),
        }


def _programs() -> list[str]:
    texts = ((_ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/checkpointing.md"))
    return [block for text in texts for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL)]


@pytest.mark.parametrize(
    ("number", "steps"), [(0, _STEPS), (1, _STEPS), (2, 3 * _EPOCHS)], ids=["README", "steps", "epochs"]
)
@pytest.mark.parametrize("stops", [(4,), (3, 6)], ids=str)
def test_a_program_as_printed_goes_on_where_it_was_stopped(
    number: int, steps: int, stops: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What several lives compute is what one computes, and each that is stopped ends with 75."""
    program = compile(_programs()[number], "page", "exec")

    def lives(name: str, *stops: int | None) -> tuple[list[Any], list[Any]]:
        monkeypatch.setenv("SPOTWATCH_CHECKPOINT_URL", str(tmp_path / name))
        monkeypatch.setenv("SPOTWATCH_RUNTIME_DIR", "")
        rows: list[Any] = []
        codes = []
        for stop_at in (*stops, None):
            with pytest.raises(SystemExit) as left:
                exec(program, Trainer(rows, stop_at).names())
            codes.append(left.value.code)
        return rows, codes

    whole, _ = lives("whole")
    assert len(whole) == steps
    assert lives("stopped", *stops) == (whole, [75] * len(stops) + [0])


def test_no_program_is_left_out() -> None:
    """A block more on a page wants a row above."""
    assert len(_programs()) == 3
