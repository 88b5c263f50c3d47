# SPDX-License-Identifier: Apache-2.0
"""Lives of LoRA runs, each a process of its own, forked from one that has imported the libraries.

`peft_run.py FOLDER OUT PLAN`: the plan is a JSON object of runs by name, each a list of lives; OUT takes the
exit status of each life and what it has noted. What happens to a life happens at a point that the plan names;
a life that has a `script` instead gets SIGTERM once its `trace` has so many `lines`.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import peft
import torch
import torch.distributed as dist
import transformers
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from spotwatch.clock import read_boot_id
from spotwatch.errors import SpotwatchError
from spotwatch.handshake import Order, Status
from spotwatch.model import Do
from spotwatch.safe_files import write_atomically
from spotwatch.train import Checkpointer
from spotwatch.train.integrations.peft import adapters
from tests.train.integrations.lives import note
from tests.train.rendezvous import rendezvous

TOTAL = 14
PARTS = 2
EVALUATE_EVERY = 4
VOCABULARY = 64


def make_base(folder: Path, seed: int) -> None:
    """Write a base as people download one."""
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=True,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)


class Life:
    """One life: trains until it is over, or until what is to happen has happened.

    Args:
        base: the folder of all.
        run: the name of the run.
        plan: of this life: what happens (`term`, `kill`, `order`), `at` which step and in which `phase`, and
            how the run is made (`all_parameters`, `base`, `ranks`, `fsdp`, `adalora`, `r`, `every`).
    """

    def __init__(self, base: Path, run: str, plan: dict[str, Any]) -> None:
        self.base, self.run, self.plan = base, run, plan
        self.rank = int(os.environ.get("RANK", "0"))
        self.trace = base / f"{run}.trace"

    def train(self) -> int:
        """Train and return the exit status."""
        plan = self.plan
        torch.manual_seed(plan.get("seed", 0))
        base = transformers.AutoModelForCausalLM.from_pretrained(self.base / plan.get("base", "base"))
        model: Any = peft.get_peft_model(base, self._config())
        called = self._wrapped(model)
        chosen = [one for one in model.parameters() if one.requires_grad or plan.get("all_parameters")]
        optimizer = torch.optim.AdamW(chosen, lr=1e-2)
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, TOTAL)
        ck = Checkpointer(
            self.base / "store", run_id=self.run, every_steps=plan.get("every", 1000), blocking=True
        )
        ck.track(model=adapters(called), optimizer=optimizer, scheduler=scheduler)
        step = ck.resume()
        with ck:
            while step < TOTAL:
                if step % EVALUATE_EVERY == 0 and not self._evaluate(model, step, ck):
                    break
                loss = self._one_step(called, optimizer, step)
                if plan.get("adalora"):
                    model.base_model.update_and_allocate(step)
                optimizer.zero_grad()
                scheduler.step()
                step += 1
                rate = float(scheduler.get_last_lr()[0])
                note(self.trace, rank=self.rank, step=step, loss=loss.hex(), rate=rate.hex())
                if ck.step(step):
                    break
        if plan.get("ranks"):
            dist.destroy_process_group()
        return ck.exit_code

    def _wrapped(self, model: Any) -> Any:
        if not self.plan.get("ranks"):
            return model
        dist.init_process_group("gloo")
        if not self.plan.get("fsdp"):
            return torch.nn.parallel.DistributedDataParallel(model)
        mesh = init_device_mesh("cpu", (self.plan["ranks"],))
        for layer in model.base_model.model.model.layers:
            fully_shard(layer, mesh=mesh)
        return fully_shard(model, mesh=mesh)

    def _one_step(self, model: Any, optimizer: torch.optim.Optimizer, step: int) -> float:
        model.train()
        total = 0.0
        for part in range(PARTS):
            chance = torch.Generator().manual_seed(1000 * self.rank + step * PARTS + part)
            tokens = torch.randint(VOCABULARY, (2, 8), generator=chance)
            loss = model(input_ids=tokens, labels=tokens).loss / PARTS
            loss.backward()
            total += loss.item()
            self._happens("part", step)
        optimizer.step()
        return total

    def _evaluate(self, model: Any, step: int, ck: Checkpointer) -> bool:
        """Draw chance too, as sampling does; False: broken off, and saved as if it had not begun."""
        before = torch.get_rng_state()
        model.eval()
        for number in range(3):
            self._happens("evaluation", step)
            if self._is_told(ck, step, before):
                return False
            with torch.no_grad():
                tokens = torch.randint(VOCABULARY, (2, 8))
                loss = float(model(input_ids=tokens, labels=tokens).loss)
            note(self.trace, rank=self.rank, evaluated=step, number=number, loss=loss.hex())
        return True

    def _is_told(self, ck: Checkpointer, step: int, before: torch.Tensor) -> bool:
        if not self.plan.get("ranks") and not ck.poll():
            return False
        # Ranks must agree, for which all of them call step().
        now = torch.get_rng_state()
        torch.set_rng_state(before)
        if ck.step(step):
            return True
        torch.set_rng_state(now)
        return False

    def _happens(self, phase: str, step: int) -> None:
        plan = self.plan
        if (plan.get("phase", "part"), plan.get("at")) != (phase, step) or plan.get("rank", 0) != self.rank:
            return
        plan["at"] = None
        if plan["what"] == "order":
            order = Order(boot_id=read_boot_id(), seq=1, do=Do.STOP, why="test")
            runtime_dir = Path(os.environ["SPOTWATCH_RUNTIME_DIR"])
            write_atomically(runtime_dir / "order.json", order.to_bytes())
            # Fourteen small steps are over before an order is looked for.
            status = runtime_dir / "status" / f"{self.run}.json"
            while Status.from_bytes(status.read_bytes()).seq < order.seq:
                time.sleep(0.01)
        else:
            os.kill(os.getpid(), {"term": signal.SIGTERM, "kill": signal.SIGKILL}[plan["what"]])

    def _config(self) -> Any:
        if self.plan.get("adalora"):
            return peft.AdaLoraConfig(
                init_r=4, target_r=2, total_step=TOTAL, tinit=2, tfinal=3, deltaT=2, target_modules=["q_proj"]
            )
        return peft.LoraConfig(
            r=self.plan.get("r", 4), lora_dropout=0.1, target_modules=["q_proj", "v_proj", "down_proj"]
        )


def live(base: Path, run: str, number: int, plan: dict[str, Any]) -> tuple[int, str]:
    """Live one life, of one process or of several, and return how it ended and what it printed."""
    runtime = base / f"runtime-{run}-{number}"
    runtime.mkdir(mode=0o700)
    output = base / f"output-{run}-{number}"
    ranks = plan.get("ranks", 1)
    meeting = rendezvous()
    children = []
    for rank in range(ranks):
        pid = os.fork()
        if pid == 0:
            os.environ["SPOTWATCH_RUNTIME_DIR"] = str(runtime)
            if ranks > 1:
                os.environ.update(meeting, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks))
            with output.open("ab", buffering=0) as out:
                os.dup2(out.fileno(), 1)
                os.dup2(out.fileno(), 2)
            os._exit(_run(base, run, plan))
        children.append(pid)
    if plan.get("lines"):
        _term_at(children[0], Path(plan["trace"]), plan["lines"])
    statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    return next((status for status in statuses if status), 0), output.read_text(errors="replace")


def _term_at(pid: int, trace: Path, lines: int) -> None:
    """Tell a script to stop as soon as it has written so many lines, and is still there."""
    while not trace.exists() or len(trace.read_bytes().splitlines()) < lines:
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return
        time.sleep(0.002)
    os.kill(pid, signal.SIGTERM)


def _run(base: Path, run: str, plan: dict[str, Any]) -> int:
    try:
        if "script" in plan:
            sys.argv = [plan["script"], *plan["arguments"]]
            runpy.run_path(plan["script"], run_name="__main__")
            return 0
        return Life(base, run, plan).train()
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except SpotwatchError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 1
    except BaseException:  # noqa: BLE001 - a child must never return into its parent
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()  # os._exit() does not


def main() -> int:
    """Live all lives of the plan."""
    base, out = Path(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    make_base(base / "base", 0)
    make_base(base / "other", 1)
    make_base(base / "bit", 0)
    with (base / "bit" / "model.safetensors").open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        (lowest,) = file.read(1)
        file.seek(-4, os.SEEK_END)
        file.write(bytes([lowest ^ 1]))
    result: dict[str, Any] = {}
    for run, lives in json.loads(Path(sys.argv[3]).read_text()).items():
        ends = [live(base, run, number, one) for number, one in enumerate(lives)]
        trace = base / f"{run}.trace"
        rows = [json.loads(line) for line in trace.read_text().splitlines()] if trace.exists() else []
        result[run] = {
            "statuses": [end[0] for end in ends],
            "outputs": [end[1] for end in ends],
            "rows": rows,
        }
    out.write_text(json.dumps(result))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
