# SPDX-License-Identifier: Apache-2.0
"""How a SpotwatchCallback is used rightly and wrongly, one short training after the other.

`transformers_checks.py BASE TRACE` notes for each check what came of it; of one that raises what a user is to
see, that text.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

from spotwatch.errors import ConfigError, StoreError
from spotwatch.handshake import DRAINING
from spotwatch.model import Do
from spotwatch.train import Checkpointer
from spotwatch.train.integrations.transformers import SpotwatchCallback, hooks
from spotwatch.train.integrations.transformers.counters import plain
from tests.train.conftest import Daemon
from tests.train.integrations.lives import note
from tests.train.integrations.workers.transformers_data import averaged, other_data, own_loaders
from tests.train.integrations.workers.transformers_own import (
    Stop,
    StopEvaluating,
    also_without_adapters,
    always_given,
    begun_evaluating,
    gathered,
    own_train,
    resumed_from_its_own,
)
from tests.train.integrations.workers.transformers_settings import frozen_again, longer_schedule, other_rates
from tests.train.integrations.workers.transformers_shard import replaced
from tests.train.integrations.workers.transformers_world import Rows, be_quiet, collate


class Bench:
    """Makes Trainers in a folder of their own."""

    def __init__(self, base: Path) -> None:
        self.base = base

    def callback(self, run_id: str = "run", **options: Any) -> SpotwatchCallback:
        """Make a callback with a Checkpointer."""
        self.ck = Checkpointer(self.base / "store", run_id=run_id, every_steps=1000)
        return SpotwatchCallback(self.ck, **options)

    def trainer(self, *callbacks: Any, **given: Any) -> Trainer:
        """Make a small Trainer; `of` is its class, `count` how many sentences it trains on."""
        set_seed(3)
        of, count = given.pop("of", Trainer), given.pop("count", 22)
        config = {"vocab_size": 32, "n_positions": 16, "n_embd": 16, "n_layer": 1, "n_head": 2}
        arguments = {"max_steps": 2, "save_strategy": "no", "per_device_train_batch_size": 2} | given
        return of(
            GPT2LMHeadModel(GPT2Config(**config, bos_token_id=0, eos_token_id=0)),
            TrainingArguments(
                output_dir=str(self.base / "own"), use_cpu=True, report_to=[], disable_tqdm=True, **arguments
            ),
            data_collator=lambda batch: collate(batch, noise=False),
            train_dataset=Rows(count, noise=False),
            eval_dataset=Rows(6, noise=False),
            callbacks=list(callbacks),
        )


def added_only(bench: Bench) -> str:
    """Add the callback to a Trainer that exists, without attaching it."""
    trainer = bench.trainer()
    trainer.add_callback(bench.callback())
    trainer.train()
    return "trained"


def attached(bench: Bench) -> str:
    """Attach it."""
    trainer, callback = bench.trainer(), bench.callback()
    callback.attach(trainer)
    callback.attach(trainer)
    return f"{trainer.train().global_step} steps, {bench.ck.exit_code}"


def two_callbacks(bench: Bench) -> str:
    """Give a Trainer two."""
    bench.trainer(bench.callback(), bench.callback("other"))
    return "made"


def two_trainers(bench: Bench) -> str:
    """Give one to two Trainers."""
    callback = bench.callback()
    bench.trainer(callback)
    bench.trainer(callback)
    return "made"


def no_checkpointer(bench: Bench) -> str:
    """Give it an address."""
    return str(SpotwatchCallback(str(bench.base)))  # type: ignore[arg-type]


def trained_twice(bench: Bench) -> str:
    """Train once more with the same."""
    trainer = bench.trainer(bench.callback())
    trainer.train()
    trainer.train()
    return "trained"


def batch_size_found(bench: Bench) -> str:
    """Let the Trainer find a batch size."""
    bench.trainer(bench.callback(), auto_find_batch_size=True).train()
    return "trained"


def deepspeed(bench: Bench) -> str:
    """Have DeepSpeed and FSDP1, which cannot be had here, said to be on."""
    trainer = bench.trainer(bench.callback())
    trainer.is_deepspeed_enabled = True
    trainer.accelerator.state.fsdp_plugin = SimpleNamespace(fsdp_version=1)
    try:
        trainer.train()
    finally:
        trainer.accelerator.state.fsdp_plugin = None
    return "trained"


def searched(bench: Bench) -> str:
    """Train a trial of a search."""
    bench.trainer(bench.callback()).train(trial={"learning_rate": 1.0})
    return "trained"


def own_handler(bench: Bench) -> str:
    """Ask for the Trainer's own checkpoint at a SIGTERM."""
    before = signal.getsignal(signal.SIGTERM)
    trainer = bench.trainer(bench.callback(), enable_jit_checkpoint=True)
    names = [type(callback).__name__ for callback in trainer.callback_handler.callbacks]
    return f"{signal.getsignal(signal.SIGTERM) is before}, {'JITCheckpointCallback' in names}"


def resumed_from_nowhere(bench: Bench) -> str:
    """Begin with a checkpoint of the Trainer's that is not there."""
    bench.trainer(bench.callback()).train(resume_from_checkpoint=True)
    return "trained"


def other_batch_size(bench: Bench) -> str:
    """Go on with another batch size."""
    bench.trainer(bench.callback(exits=False), Stop(1), max_steps=8).train()
    bench.trainer(bench.callback(), max_steps=8, per_device_train_batch_size=4).train()
    return "trained"


def scaled(bench: Bench) -> str:
    """Have a scaler, as fp16 has on a GPU, and go on with what it has come to."""
    trainer = bench.trainer(bench.callback(exits=False), Stop(1), max_steps=8)
    trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    trainer.accelerator.scaler.scale(torch.ones(()))
    trainer.train()
    other = bench.trainer(bench.callback(), max_steps=8)
    other.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    other.train()
    return f"{other.accelerator.scaler.state_dict()['scale']}"


class Swaps(torch.optim.SGD):
    """Has other weights in the model while it is evaluated, as schedule-free optimizers have."""

    def train(self) -> None:
        """Put those of training in."""

    def eval(self) -> None:
        """Put the others in."""


def other_weights_evaluated(bench: Bench) -> str:
    """Be stopped in an evaluation that must not be saved in: it is finished, and not done again."""
    evaluated, steps = [], []
    for _ in range(2):
        stop = StopEvaluating()
        given = {"max_steps": 3, "eval_strategy": "steps", "eval_steps": 2, "per_device_eval_batch_size": 2}
        trainer = bench.trainer(bench.callback(exits=False), stop, **given)
        trainer.optimizer = Swaps(trainer.model.parameters(), lr=0.01)
        steps.append(trainer.train().global_step)
        evaluated.append(stop.steps)
    return f"{evaluated} {steps}"


def told_before(bench: Bench) -> str:
    """Begin on a machine that is being drained."""
    runtime = bench.base / "runtime"
    runtime.mkdir(mode=0o700)
    os.environ["SPOTWATCH_RUNTIME_DIR"] = str(runtime)
    try:
        Daemon(runtime).order(Do.STOP, 1)
        (runtime / DRAINING).touch()
        returned = bench.trainer(bench.callback(exits=False)).train().global_step
        code = bench.ck.exit_code
        bench.trainer(bench.callback()).train()
    except SystemExit as leaving:
        return f"{returned} {code} {leaving.code}"
    finally:
        del os.environ["SPOTWATCH_RUNTIME_DIR"]
    return "trained"


def logged_oddly(bench: Bench) -> str:
    """Log what is no number."""
    del bench
    values = {"a": np.float32(0.5), "b": torch.tensor(2), "c": [np.arange(2), object], "d": (1, None, "x")}
    return str(plain(values))


def another_trainer(bench: Bench) -> str:
    """Find a Trainer of another version."""
    del bench

    class Other(Trainer):
        _evaluate = None

        def _run_epoch(self) -> None:
            pass

    hooks.check(Other)
    return "fits"


def as_the_page_says(bench: Bench) -> str:
    """Run the code of the page twice, as printed, in a folder of its own."""
    page = Path(__file__).parents[4] / "docs/integrations/transformers.md"
    _, *blocks = page.read_text(encoding="utf-8").split("```python\n")
    os.environ["SPOTWATCH_CHECKPOINT_URL"] = str(bench.base / "store")
    back = Path.cwd()
    os.chdir(bench.base)
    steps = []
    try:
        for code in [block.split("```")[0] for block in blocks] * 2:
            names: dict[str, Any] = {}
            exec(compile(code, str(page), "exec"), names)
            steps.append(names["trainer"].state.global_step)
    finally:
        os.chdir(back)
        del os.environ["SPOTWATCH_CHECKPOINT_URL"]
    return f"{steps} {[path.name for path in (bench.base / 'store').iterdir()]}"


CHECKS: tuple[Callable[[Bench], str], ...] = (
    *(added_only, attached, two_callbacks, two_trainers, no_checkpointer, trained_twice, batch_size_found),
    *(deepspeed, searched, own_handler, resumed_from_nowhere, resumed_from_its_own, other_batch_size, scaled),
    *(told_before, logged_oddly, another_trainer, as_the_page_says, other_weights_evaluated),
    gathered,
    *(own_loaders, averaged, other_data, begun_evaluating, always_given, own_train),
    *(also_without_adapters, replaced, frozen_again, longer_schedule, other_rates),
)


def main() -> int:
    """Do all."""
    base, trace = Path(sys.argv[1]), sys.argv[2]
    be_quiet()
    for check in CHECKS:
        place = base / check.__name__
        place.mkdir(parents=True)
        try:
            said = check(Bench(place))
        except (ConfigError, StoreError) as error:
            said = f"{type(error).__name__}: {error}"
        # Of two lives in one process the first leaves its signals ignored, as before its end.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        note(trace, what=check.__name__, said=said)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
