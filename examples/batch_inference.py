# SPDX-License-Identifier: Apache-2.0
"""A batch that survives the loss of its machine: start the same command again, on one machine or on several.

The lines of spotwatch are marked with an arrow; the rest is any batch. The model here is a few lines of
arithmetic over letters, so that nothing is downloaded.

    python examples/batch_inference.py --url s3://bucket/outputs --run-id captions-01 --shares 4
    python examples/batch_inference.py --url s3://bucket/outputs --run-id captions-01 --read
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from dataclasses import dataclass

from spotwatch.train import DoneList  # <- spotwatch


@dataclass(frozen=True)
class Item:
    """What is to be done: light, for a worker goes through all of them."""

    id: str
    text: str


def items(count: int) -> list[Item]:
    """Return the inputs, the same on every machine."""
    return [Item(f"item-{number:06d}", f"the picture number {number}") for number in range(count)]


def infer(item: Item, seconds: float) -> dict[str, object]:
    """Return what the model makes of an item."""
    time.sleep(seconds)
    letters = sum(map(ord, item.text))
    return {"caption": item.text.title(), "score": letters % 101 / 101}


def main() -> int:
    """Do what is left, and return the exit status."""
    args = parse()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    if args.read:
        for key, output in DoneList.outputs(args.url, args.run_id):  # <- spotwatch
            print(json.dumps({"id": key, "output": output}))
        return 0

    done = DoneList(
        args.url, run_id=args.run_id, every_items=args.every_items, shares=args.shares
    )  # <- spotwatch
    with done:  # <- spotwatch
        for item in done.todo(items(args.count), key=lambda item: item.id):  # <- spotwatch
            done.add(item.id, infer(item, args.item_seconds))  # <- spotwatch
    print(f"{len(done)} of {args.count} done")
    return done.exit_code  # <- spotwatch: 0 all done, 75 stopped and durable, 76 stopped and not


def parse() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", default="outputs", help="where to save: a path, file://, s3://, spaces://")
    parser.add_argument("--run-id", default="example", help="the same for every worker of this batch")
    parser.add_argument("--count", type=int, default=1000, help="how many items there are")
    parser.add_argument("--every-items", type=int, default=50, help="at most so many are done again")
    parser.add_argument("--shares", type=int, help="how many workers can be at work at once; fixed at first")
    parser.add_argument("--item-seconds", type=float, default=0.002, help="how long an item takes")
    parser.add_argument("--read", action="store_true", help="print the outputs, one a line")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
