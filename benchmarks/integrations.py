# SPDX-License-Identifier: Apache-2.0
"""What each integration costs a step when nothing is due, in the real library; one JSON document.

The same tiny training runs with it and without, in turn, in one process. A step is the time from one forward
pass to the next; of a training the median counts, of each round the difference of the two. Where others use
the machine too, the processor time of the training thread, in the least disturbed tenth of the steps, says
more; that is held against the bar. Beside both stands the time in `step` alone, ours or the Checkpointer's.
The training is so small that the library is nearly all of a step.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from _bench import go_ahead, machine, spread

from spotwatch.train import Checkpointer

BAR_MICROSECONDS = 50.0
ROWS = 64
FIRST = 20
"""Steps that do not count: the first ones make buffers and caches."""


class Marks:
    """When each forward pass began, and how long the integration's own calls took.

    Args:
        steps: how many the training has.
    """

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.at: list[int] = []
        self.cpu_at: list[int] = []
        self.within: list[int] = []

    def mark(self) -> None:
        """Note that a forward pass begins."""
        self.at.append(time.perf_counter_ns())
        self.cpu_at.append(time.thread_time_ns())
        self.within.append(0)

    def timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that does the same, and notes how long it took."""

        def timed(*arguments: Any, **named: Any) -> Any:
            begun = time.perf_counter_ns()
            try:
                return call(*arguments, **named)
            finally:
                if self.within:
                    self.within[-1] += time.perf_counter_ns() - begun

        return timed

    def step_microseconds(self) -> float:
        """Return the median of the steps that count."""
        return statistics.median(_steps(self.at))

    def step_cpu_microseconds(self) -> float:
        """Return what they took of the processor in the training thread, in the least disturbed tenth."""
        return statistics.quantiles(_steps(self.cpu_at), n=10)[0]

    def call_microseconds(self) -> float:
        """Return the median, over those steps, of the time within the integration's own call."""
        return statistics.median(self.within[FIRST:-1]) / 1000


def _steps(at: Sequence[int]) -> list[float]:
    return [(b - a) / 1000 for a, b in pairwise(at[FIRST:])]


class Net(torch.nn.Module):
    """A layer that says when it is used.

    Args:
        marks: that it tells.
    """

    def __init__(self, marks: Marks) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self._marks = [marks]  # in a list, so that torch takes it for nothing of its own

    def forward(self, x: torch.Tensor) -> Any:
        """Return a loss, as transformers wants it."""
        self._marks[0].mark()
        return {"loss": self.layer(x).square().mean()}


class Data(torch.utils.data.Dataset[Any]):
    """As many samples as there are steps.

    Args:
        count: of samples.
    """

    def __init__(self, count: int) -> None:
        self._rows = torch.randn(count, 4)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": self._rows[index]}


def timed(checkpointer: Checkpointer, marks: Marks) -> Checkpointer:
    """Return the same, whose step tells how long it took."""
    checkpointer.step = marks.timed(checkpointer.step)  # type: ignore[method-assign]  # measured, not changed
    return checkpointer


def in_transformers(marks: Marks, checkpointer: Checkpointer | None, folder: Path) -> None:
    """Train by transformers' Trainer."""
    from transformers import Trainer, TrainingArguments  # noqa: PLC0415 - only what is measured is imported

    from spotwatch.train.integrations.transformers import SpotwatchCallback  # noqa: PLC0415 - as above

    callbacks = [] if checkpointer is None else [SpotwatchCallback(timed(checkpointer, marks))]
    arguments = TrainingArguments(
        output_dir=str(folder / "out"),
        max_steps=marks.steps,
        per_device_train_batch_size=1,
        report_to=[],
        disable_tqdm=True,
        save_strategy="no",
        logging_strategy="no",
        use_cpu=True,
    )
    Trainer(Net(marks), arguments, train_dataset=Data(marks.steps), callbacks=callbacks).train()


def in_lightning(marks: Marks, checkpointer: Checkpointer | None, folder: Path) -> None:
    """Train by Lightning's Trainer."""
    import lightning as lt  # noqa: PLC0415 - as above

    from spotwatch.train.integrations.lightning import SpotwatchCallback  # noqa: PLC0415 - as above

    class Module(lt.LightningModule):  # type: ignore[misc]  # it has no types here
        def __init__(self) -> None:
            super().__init__()
            self.net = Net(marks)

        def training_step(self, batch: Any, _: int) -> Any:
            return self.net(**batch)["loss"]

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters())

    callbacks = [] if checkpointer is None else [SpotwatchCallback(timed(checkpointer, marks))]
    trainer = lt.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=marks.steps,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        callbacks=callbacks,
    )
    trainer.fit(Module(), torch.utils.data.DataLoader(Data(marks.steps)))


def in_accelerate(marks: Marks, checkpointer: Checkpointer | None, folder: Path) -> None:
    """Train by a loop with Accelerate."""
    from accelerate import Accelerator  # noqa: PLC0415 - as above

    from spotwatch.train.integrations.accelerate import SpotwatchRun  # noqa: PLC0415 - as above

    del folder
    accelerator = Accelerator(cpu=True)
    net = Net(marks)
    loader = torch.utils.data.DataLoader(Data(marks.steps))
    model, optimizer, loader = accelerator.prepare(net, torch.optim.AdamW(net.parameters()), loader)

    def train(after: Callable[[], object]) -> None:
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch)["loss"])
                optimizer.step()
                optimizer.zero_grad()
            after()

    if checkpointer is None:
        train(lambda: None)
    else:
        with SpotwatchRun(checkpointer, accelerator) as run:
            train(marks.timed(run.step))
    accelerator.free_memory()


LIBRARIES: dict[str, Callable[[Marks, Checkpointer | None, Path], None]] = {
    "transformers": in_transformers,
    "lightning": in_lightning,
    "accelerate": in_accelerate,
}


def once(name: str, steps: int, *, is_with: bool) -> Marks:
    """Train once, in a folder of its own, with a save of the last step alone."""
    marks = Marks(steps)
    with tempfile.TemporaryDirectory(prefix="spotwatch-bench-") as scratch:
        folder = Path(scratch)
        runtime = folder / "runtime"
        runtime.mkdir(mode=0o700)
        checkpointer = None
        if is_with:
            checkpointer = Checkpointer(
                folder / "store",
                run_id="bench",
                every_steps=10**9,
                environ={"SPOTWATCH_RUNTIME_DIR": str(runtime)},
            )
        LIBRARIES[name](marks, checkpointer, folder)
    if len(marks.at) != steps:
        raise SystemExit(f"{name} took {len(marks.at)} steps instead of {steps}")
    return marks


def measured(name: str, steps: int, rounds: int) -> dict[str, Any]:
    """Return the figures of one library."""
    once(name, 2 * FIRST, is_with=True)  # imports, and what else happens once
    bare, added, added_cpu, within = [], [], [], []
    for number in range(rounds):
        order: Iterable[bool] = (False, True) if number % 2 == 0 else (True, False)
        found = {is_with: once(name, steps, is_with=is_with) for is_with in order}
        bare.append(found[False].step_microseconds())
        added.append(found[True].step_microseconds() - found[False].step_microseconds())
        added_cpu.append(found[True].step_cpu_microseconds() - found[False].step_cpu_microseconds())
        within.append(found[True].call_microseconds())
    return {
        "step_without_us": spread(bare),
        "added_us": spread(added),
        "added_cpu_us": spread(added_cpu),
        "step_call_us": spread(within),
        "is_below_bar": statistics.median(added_cpu) < BAR_MICROSECONDS,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=LIBRARIES, action="append", help="one library; may be repeated")
    parser.add_argument("--steps", type=int, default=600, help="of each training")
    parser.add_argument("--rounds", type=int, default=9, help="each with and without")
    parser.add_argument("--ahead", action="store_true", help="go before all else that runs here; root only")
    options = parser.parse_args()
    if options.steps <= 2 * FIRST:
        parser.error(f"--steps {options.steps}: wants more than {2 * FIRST}")
    if options.ahead:
        go_ahead(os.getpid())
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    results = {}
    stdout, sys.stdout = sys.stdout, sys.stderr  # what the libraries print is no part of the document
    for name in options.only or LIBRARIES:
        results[name] = measured(name, options.steps, options.rounds)
    sys.stdout = stdout
    document = {
        "version": 1,
        "benchmark": "integrations",
        "bar_us": BAR_MICROSECONDS,
        "ahead": options.ahead,
        "steps": options.steps,
        "rounds": options.rounds,
        "machine": machine(),
        "load_average_at_end": os.getloadavg(),
        "libraries": results,
    }
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
