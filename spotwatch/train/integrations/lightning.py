# SPDX-License-Identifier: Apache-2.0
"""Lightning's Trainer, made safe by one callback: saved at notices, resumed exactly, left with an exit code.

Works with `import lightning` and with `import pytorch_lightning`, which are two packages of one code. Where
training stands is in `lightning_state`, what is hooked into in `lightning_hooks`. It has no store and no
format of its own: the Checkpointer is the user's.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, Self

from spotwatch.errors import ConfigError
from spotwatch.train.checkpointer import Checkpointer
from spotwatch.train.integrations.lightning_exit import Untrained
from spotwatch.train.integrations.lightning_fit import Fit
from spotwatch.train.integrations.lightning_fitness import refuse, warn
from spotwatch.train.integrations.versions import require

log = logging.getLogger("spotwatch.train")

LEAST, TESTED = "2.6", "2.6.6"
_PACKAGES = {"lightning.pytorch": "lightning", "pytorch_lightning": "pytorch-lightning"}


class SpotwatchCallback:
    """Let `Trainer.fit` go on with a run, save it, and leave when the machine is taken away.

    Give it to the Trainer: `L.Trainer(callbacks=[SpotwatchCallback(ck)])`. `fit` then resumes by itself; a
    `ckpt_path` counts only where the run is new. It is of one `fit`.

    When told to stop, the state is saved, Lightning tears down as at an end of training, and `fit` raises
    `SystemExit(ck.exit_code)`: 75, 76 or 77. A training that has come to its end returns.

    Args:
        ck: nothing is tracked in it yet but what you add; `resume()` and `with` are this callback's.
        exits: False lets `fit` return after a stop: look at `ck.exit_code` then.

    Raises:
        ConfigError: neither package is imported, or its version does not fit.
    """

    def __new__(cls, ck: Checkpointer, *, exits: bool = True) -> Self:  # noqa: ARG004 - __init__ takes them
        """Make an object that each of the two packages that is imported takes for a Callback of its own."""
        if cls is not SpotwatchCallback:
            return object.__new__(cls)
        found = [name for name in _PACKAGES if name in sys.modules]
        for name in found:
            require(_PACKAGES[name], LEAST, TESTED)
        if not found:
            raise ConfigError("import lightning, or pytorch_lightning, before SpotwatchCallback is made")
        # Lightning asks whether a callback is of its class, and each package has another one.
        bases = (cls, *(sys.modules[name].Callback for name in found))
        kind: type[Self] = type(cls.__name__, bases, {"__module__": cls.__module__})
        return object.__new__(kind)

    def __init__(self, ck: Checkpointer, *, exits: bool = True) -> None:
        if not isinstance(ck, Checkpointer):
            raise ConfigError(f"SpotwatchCallback({ck!r}): give it a spotwatch.train.Checkpointer")
        self._ck = ck
        self._exits = exits
        self._fit: Fit | None = None
        self._untrained: Untrained | None = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Take the trainer's hooks, before it restores and sets up anything."""
        if stage != "fit":
            self._untrained = Untrained(trainer, self._ck, _package_of(trainer), exits=self._exits)
            return
        if trainer.fast_dev_run:
            log.info("fast_dev_run: the run is neither resumed nor saved")
            return
        if self._fit is not None:
            raise ConfigError(
                "fit() a second time with one SpotwatchCallback: it is of one fit; make a Trainer with a "
                "SpotwatchCallback and a Checkpointer of its own, with another run_id"
            )
        package = _package_of(trainer)
        ours = [one for one in trainer.callbacks if isinstance(one, SpotwatchCallback)]
        refuse(trainer, pl_module, ours, package)
        warn(trainer)
        self._fit = Fit(trainer, self._ck, package, exits=self._exits)

    def on_validation_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Note that an evaluation has begun."""
        del trainer, pl_module
        if self._fit is not None:
            self._fit.evaluations.begun()

    def on_validation_batch_end(self, trainer: Any, *_: Any) -> None:
        """Break the evaluation off where a stop is in force."""
        del trainer
        if self._untrained is not None:
            self._untrained.batch_ended()
        elif self._fit is not None:
            self._fit.evaluations.batch_ended()

    def on_test_batch_end(self, *_: Any) -> None:
        """Break the test off where a stop is in force."""
        if self._untrained is not None:
            self._untrained.batch_ended()

    def on_predict_batch_end(self, *_: Any) -> None:
        """Break the prediction off where a stop is in force."""
        if self._untrained is not None:
            self._untrained.batch_ended()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Save nothing new: there may be half a step in the weights."""
        del trainer, pl_module
        if self._untrained is not None:
            self._end_untrained()
        elif self._fit is not None:
            self._fit.fail(exception)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Release the run."""
        del trainer, pl_module
        if self._untrained is not None:
            self._end_untrained()
        elif self._fit is not None and stage == "fit":
            self._fit.finish()

    def _end_untrained(self) -> None:
        untrained, self._untrained = self._untrained, None
        if untrained is not None:
            untrained.end()


def _package_of(trainer: Any) -> str:
    for kind in type(trainer).__mro__:
        for name in _PACKAGES:
            if kind.__module__.startswith(name + "."):
                return name
    raise ConfigError(f"a {type(trainer).__qualname__} is no Trainer of {' or '.join(_PACKAGES)}")
