# SPDX-License-Identifier: Apache-2.0
"""`python -m spotwatch.simulation`: play many stories, say which failed and how.

It exits 1 when one failed.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter

from spotwatch.simulation import draw, simulate


def main() -> int:
    """Play the seeds asked for."""
    parser = argparse.ArgumentParser(prog="python -m spotwatch.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many stories (default 1000)")
    parser.add_argument("--from", dest="first", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--show", action="store_true", help="print each story and its orders")
    wanted = parser.parse_args()
    counts: Counter[str] = Counter()
    for seed in range(wanted.first, wanted.first + wanted.seeds):
        outcome = simulate(seed)
        counts.update(stories=1, failed=bool(outcome.problems), deaths=outcome.deaths)
        counts.update(signals=outcome.signals, saves=outcome.saves)
        counts.update(order.do.value for order in outcome.orders)
        counts["virtual_seconds"] += round(outcome.virtual_seconds)
        if wanted.show:
            sys.stdout.write(f"{draw(seed)}\n{outcome}\n")
        for problem in outcome.problems:
            sys.stdout.write(f"seed {seed}: {problem}\n")
            sys.stdout.flush()
    sys.stdout.write(" ".join(f"{name}={count}" for name, count in counts.items()) + "\n")
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
