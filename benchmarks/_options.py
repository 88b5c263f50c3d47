# SPDX-License-Identifier: Apache-2.0
"""The command line of the benchmarks of saving and restoring, and the head of what they write.

It measures nothing and imports neither spotwatch nor torch.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection
from typing import Any

from _bench import MB, machine


def read(doc: str | None, sizes: Collection[str], choice: str, names: Collection[str]) -> argparse.Namespace:
    """Return the options; what was chosen is a list under the name of its option.

    Args:
        doc: of the benchmark; its first line is the description.
        sizes: of the state.
        choice: the option that takes some of `names`, separated by commas, as `ways`.
        names: all that can be chosen.
    """
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--size", choices=sizes, default="full")
    parser.add_argument("--repeats", type=int, default=5, help="rounds that count")
    parser.add_argument("--rate", type=float, default=240.0, help="MB/s of the link; 0: no limit")
    parser.add_argument(f"--{choice}", default=",".join(names))
    parser.add_argument("--json", default="", metavar="FILE", help="instead of stdout")
    parser.add_argument("--ahead", action="store_true", help="go before all else that runs here; root only")
    options = parser.parse_args()
    chosen = getattr(options, choice).split(",")
    if unknown := [name for name in chosen if name not in names]:
        parser.error(f"no {choice.removesuffix('s')} {unknown[0]!r}; have {', '.join(names)}")
    if options.repeats < 1:
        parser.error(f"--repeats {options.repeats}: wants at least 1")
    setattr(options, choice, chosen)
    return options


def head(benchmark: str, options: argparse.Namespace, bars: object) -> dict[str, Any]:
    """Return the begin of the document: what was measured, how, where, and what is promised."""
    return {
        "version": 1,
        "benchmark": benchmark,
        "size": options.size,
        "bars": bars,
        "ahead": options.ahead,
        "rate_bytes_per_second": options.rate * MB,
        "repeats": options.repeats,
        "machine": machine(),
    }
