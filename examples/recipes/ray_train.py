# SPDX-License-Identifier: Apache-2.0
"""The example trainer under Ray Train: a stop ends all workers at one step, and Ray starts them again.

Each node runs `spotwatch run`. Its files, in SPOTWATCH_RUNTIME_DIR, are all that a worker hears: it trains in
a thread, where no signal arrives.

    RAY_TRAIN_V2_ENABLED=1 python ray_train.py --url s3://bucket/checkpoints --run-id sweep-01 --workers 2
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import ray  # type: ignore[import-not-found]  # 600 MB, and not installed where types are checked
import ray.train  # type: ignore[import-not-found]
import torch
from ray.train.torch import TorchTrainer, get_device, prepare_model  # type: ignore[import-not-found]
from torch import nn

from spotwatch.train import Checkpointer  # <- spotwatch


class Stopped(RuntimeError):
    """Training was told to stop; Ray has to start it again, and takes a normal return for the end."""


def train(config: dict[str, Any]) -> None:
    """Train on one worker."""
    torch.manual_seed(0)
    model = prepare_model(nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    checkpointer = Checkpointer(config["url"], run_id=config["run_id"])  # <- spotwatch
    checkpointer.track(model=model, optimizer=optimizer)  # <- spotwatch
    step = checkpointer.resume()  # <- spotwatch, on all workers
    rank = ray.train.get_context().get_world_rank()
    with checkpointer:  # <- spotwatch
        while step < config["total_steps"]:
            inputs = torch.randn(32, 16, generator=torch.Generator().manual_seed(step * 1000 + rank))
            inputs = inputs.to(get_device())
            loss = nn.functional.mse_loss(model(inputs), inputs.roll(1, dims=1))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch has no types here
            optimizer.step()
            step += 1
            time.sleep(config["step_seconds"])
            if checkpointer.step(step):  # <- spotwatch: True on all workers at the same step
                break
    if checkpointer.exit_code != 0:  # <- spotwatch
        raise Stopped(f"at step {step}, with {checkpointer.exit_code}")
    ray.train.report({"step": step, "loss": loss.item()})


def main() -> None:
    """Run the workers until they are through."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", required=True)
    parser.add_argument("--run-id", default="example")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--runtime-dir", default="/run/spotwatch", help="the daemon's, on every node")
    parser.add_argument("--total-steps", type=int, default=500)
    parser.add_argument("--step-seconds", type=float, default=0.0)
    args = parser.parse_args()
    ray.init(runtime_env={"env_vars": {"SPOTWATCH_RUNTIME_DIR": args.runtime_dir}})
    trainer = TorchTrainer(
        train,
        train_loop_config=vars(args),
        scaling_config=ray.train.ScalingConfig(num_workers=args.workers, use_gpu=torch.cuda.is_available()),
        run_config=ray.train.RunConfig(failure_config=ray.train.FailureConfig(max_failures=-1)),
    )
    print(trainer.fit().metrics)


if __name__ == "__main__":
    main()
