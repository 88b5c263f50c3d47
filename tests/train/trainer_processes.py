# SPDX-License-Identifier: Apache-2.0
"""Trainers in processes of their own, as a user starts them."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

TRAINER = """
    import os, random, signal, sys, time
    from spotwatch.train import Checkpointer
    from spotwatch.train.stores.directory import DirectoryStore
    from pathlib import Path

    class Steps:
        done = []
        def state_dict(self): return {"done": list(self.done), "weight": [0.5] * 20000}
        def load_state_dict(self, state): self.done = state["done"]

    def main(store=None, total=200, every=10, pause=0.0, **options):
        steps = Steps()
        random.seed(1)
        ck = Checkpointer(store or sys.argv[1], run_id="run", every_steps=every, **options)
        ck.track(steps=steps)
        step = ck.resume()
        assert steps.done == list(range(step)), (step, steps.done)
        print("resumed", step, flush=True)
        with ck:
            while step < total:
                steps.done.append(step)
                step += 1
                time.sleep(pause)
                if ck.step(step):
                    break
        print("left", step, flush=True)
        raise SystemExit(ck.exit_code)
"""


class Trainers:
    """Starts trainers on one store and kills what is left."""

    def __init__(self, tmp_path: Path, runtime_dir: Path) -> None:
        self.store = tmp_path / "store"
        self.script = tmp_path / "trainer.py"
        self.environ = os.environ | {"SPOTWATCH_RUNTIME_DIR": str(runtime_dir), "OMP_NUM_THREADS": "1"}
        self.started: list[subprocess.Popen[str]] = []

    def start(self, body: str, **options: Any) -> subprocess.Popen[str]:
        """Start the trainer with `body` at its end."""
        self.script.write_text(textwrap.dedent(TRAINER) + textwrap.dedent(body))
        return self.command([sys.executable, str(self.script), str(self.store)], **options)

    def command(self, argv: list[str], **options: Any) -> subprocess.Popen[str]:
        """Start any command."""
        process = subprocess.Popen(
            argv,
            **{
                "env": self.environ,
                "stdout": subprocess.PIPE,
                "stderr": subprocess.STDOUT,
                "text": True,
                **options,
            },
        )
        self.started.append(process)
        return process

    def end(self, process: subprocess.Popen[str]) -> tuple[int, str]:
        """Wait for the end and return exit status and output."""
        output, _ = process.communicate(timeout=30)
        return process.returncode, output
