# SPDX-License-Identifier: Apache-2.0
"""LoRA on a frozen base, without a Trainer, that survives the loss of its machine: start it again, anywhere.

A checkpoint holds the adapters and their optimizer; the base is loaded anew on each machine, and must be the
same to the last bit. The lines of spotwatch are marked with an arrow.

    python examples/lora_train.py --base some/model --url s3://bucket/checkpoints --run-id lora-01
"""

from __future__ import annotations

import argparse
import logging
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from spotwatch.train import Checkpointer  # <- spotwatch
from spotwatch.train.integrations.peft import adapters  # <- spotwatch

PARTS = 2
"""Gradients of so many small batches are added up for one step."""


def batch(number: int, vocabulary: int) -> torch.Tensor:
    """Return the tokens of one small batch, the same on every machine: each is the one before, plus three."""
    chance = torch.Generator().manual_seed(number)
    start = torch.randint(vocabulary, (4, 1), generator=chance)
    return (start + 3 * torch.arange(16)) % vocabulary


def main() -> int:
    """Train and return the exit status."""
    args = parse()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_pretrained(args.base, revision=args.revision)
    model: Any = get_peft_model(base, LoraConfig(r=8, lora_dropout=0.1, target_modules="all-linear"))
    vocabulary = int(base.config.vocab_size)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.total_steps)

    ck = Checkpointer(args.url, run_id=args.run_id, every_steps=args.every_steps)  # <- spotwatch
    ck.track(model=adapters(model), optimizer=optimizer, scheduler=scheduler)  # <- spotwatch
    step = ck.resume()  # <- spotwatch: reads the base once, and checks it

    with ck:  # <- spotwatch
        while step < args.total_steps:
            if step % args.evaluate_every == 0 and not evaluate(model, vocabulary, step, ck):
                ck.step(step)  # <- spotwatch: a stop, in the midst of an evaluation, which is done again
                break
            loss = 0.0
            model.train()
            for part in range(PARTS):
                tokens = batch(step * PARTS + part, vocabulary)
                part_loss = model(input_ids=tokens, labels=tokens).loss / PARTS
                part_loss.backward()
                loss += part_loss.item()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            step += 1
            if args.trace is not None:
                with args.trace.open("a", encoding="ascii") as file:
                    file.write(f"{step} {loss.hex()}\n")
            if ck.step(step):  # <- spotwatch
                break

    if args.adapter is not None and step >= args.total_steps:
        model.save_pretrained(args.adapter)
    return ck.exit_code  # <- spotwatch: 0 finished, 75 stopped and durable, 76 stopped and not


@torch.no_grad()
def evaluate(model: Any, vocabulary: int, step: int, ck: Checkpointer) -> bool:
    """Print the loss on tokens never trained on; False: broken off, because a stop is in force."""
    model.eval()
    loss = 0.0
    for number in range(4):
        if ck.poll():  # <- spotwatch
            return False
        tokens = batch(10**9 + number, vocabulary)
        loss += model(input_ids=tokens, labels=tokens).loss.item() / 4
    print(f"step {step} evaluation {loss:.4f}", flush=True)
    return True


def parse() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--base", required=True, help="a name on the hub, or a folder of save_pretrained()")
    parser.add_argument("--revision", default="main", help="of the base, on the hub")
    parser.add_argument(
        "--url", default="checkpoints", help="where to save: a path, file://, s3://, spaces://"
    )
    parser.add_argument(
        "--run-id", default="lora", help="the same on every machine that goes on with this run"
    )
    parser.add_argument("--total-steps", type=int, default=200)
    parser.add_argument("--every-steps", type=int, help="save at each multiple; else as often as is best")
    parser.add_argument("--evaluate-every", type=int, default=20, help="so many steps")
    parser.add_argument("--trace", type=Path, help="append 'STEP LOSS' for each executed step")
    parser.add_argument("--adapter", type=Path, help="write the adapter here in the end, as peft does")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
