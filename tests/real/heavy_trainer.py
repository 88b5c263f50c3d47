# SPDX-License-Identifier: Apache-2.0
"""A trainer whose steps are sleep and whose state is large, so that its saves take seconds.

It takes of examples/train.py's options those that are given to it here.
"""

from __future__ import annotations

import argparse
import time

import torch

from spotwatch.train import Checkpointer

STATE_BYTES = 500_000_000


def main() -> int:
    """Train and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url")
    parser.add_argument("--run-id")
    parser.add_argument("--every-steps", type=int)
    parser.add_argument("--step-seconds", type=float)
    parser.add_argument("--total-steps", type=int)
    args = parser.parse_args()
    model = torch.nn.Module()
    model.register_buffer("ballast", torch.rand(STATE_BYTES // 4))
    with_saves = Checkpointer(args.url, run_id=args.run_id, every_steps=args.every_steps, keep=1)
    with_saves.track(model=model)
    step = with_saves.resume()
    with with_saves:
        while step < args.total_steps:
            time.sleep(args.step_seconds)
            step += 1
            if with_saves.step(step):
                break
    return with_saves.exit_code


if __name__ == "__main__":
    raise SystemExit(main())
