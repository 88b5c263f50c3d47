# SPDX-License-Identifier: Apache-2.0
"""How long a save stalls training and when it is durable: the tutorial's way and ours, alternately.

A trainer's process saves to an S3 sink behind a link of 240 MB/s, once by each way in each round, beside a
plain socket that sends as many bytes. `fast` is ours with obstore, `boto3` is ours without. The first round
is cold and told apart. JSON goes to stdout or a file, a table for people to stderr.

    python benchmarks/save.py                               2,417 MB, 5 rounds: 8 minutes, 8 GB of memory
    python benchmarks/save.py --size small --repeats 3      60 MB: half a minute
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import _options
from _bench import MB, Sink, shown, sink, spread, table, worker, write
from _training import SIZES

VARIANTS = {"fast": "obstore", "boto3": "boto3"}
# At full size: at least so much for stall and loop, at most so much for time and memory.
BARS = {
    "fast": {"stall_ratio": 30.0, "durable_ratio": 1.08, "loop_ratio": 0.8, "memory_ratio": 1.1},
    "boto3": {"stall_ratio": 12.0, "durable_ratio": 1.2, "loop_ratio": 0.45, "memory_ratio": 1.1},
}

_AT_MOST = ("durable_ratio", "memory_ratio")


def measure(variant: str, options: argparse.Namespace, link: Sink) -> dict[str, Any]:
    """Return all samples of one variant, and what they come to."""
    with worker(
        "_save_worker.py", ["--size", options.size], link.port, VARIANTS[variant], ahead=options.ahead
    ) as trainer:
        state = trainer.do("begin")
        opened = trainer.do("open")
        samples = []
        left = 0
        for number in range(options.repeats + 1):
            # Who comes second meets memory and caches as the first left them.
            order = ("tutorial", "ours") if number % 2 else ("ours", "tutorial")
            sample: dict[str, Any] = {}
            for way in order:
                sample[way] = trainer.do(way) | {"left_by_tutorial_bytes": left}
                if way == "tutorial":
                    left += sample[way]["memory_after_bytes"] - sample[way]["memory_before_bytes"]
            size = sample["ours"]["size_bytes"]
            sample["socket_seconds"] = link.send_seconds(size)
            sample["floor_seconds"] = size / (options.rate * MB) if options.rate else sample["socket_seconds"]
            samples.append(sample | {"is_first": number == 0, "ratios": _ratios(sample, opened)})
            _progress(f"{variant}: round {number} of {options.repeats} {samples[-1]['ratios']}")
        ended = trainer.do("end")
    kept = [sample for sample in samples if not sample["is_first"]]
    return {
        "state": state,
        "open": opened,
        "end": ended,
        "samples": samples,
        "tutorial": _figures(kept, "tutorial"),
        "ours": _figures(kept, "ours"),
        "ratios": _figures(kept, "ratios"),
        "first": samples[0]["ratios"] | {"stall_seconds": samples[0]["ours"]["stall_seconds"]},
        "floor_seconds": spread([sample["floor_seconds"] for sample in kept]),
        "socket_seconds": spread([sample["socket_seconds"] for sample in kept]),
    }


def _ratios(sample: Mapping[str, Any], opened: Mapping[str, Any]) -> dict[str, float | None]:
    ours, tutorial = sample["ours"], sample["tutorial"]
    size = ours["size_bytes"]
    # Ours holds its buffer from resume() on and is compared with what there was before; the tutorial's memory
    # comes and goes with each save, but for what the allocator keeps.
    most = max(opened["memory_peak_bytes"], ours["memory_peak_bytes"] - ours["left_by_tutorial_bytes"])
    return {
        "stall_ratio": tutorial["stall_seconds"] / (ours["stall_seconds"] + ours["later_stall_seconds"]),
        "durable_ratio": ours["durable_seconds"] / sample["floor_seconds"],
        "durable_to_socket_ratio": ours["durable_seconds"] / sample["socket_seconds"],
        "tutorial_durable_ratio": tutorial["durable_seconds"] / sample["floor_seconds"],
        "loop_ratio": ours["loop_ratio"],
        "memory_ratio": (most - opened["memory_before_bytes"]) / size,
        "tutorial_memory_ratio": (tutorial["memory_peak_bytes"] - tutorial["memory_before_bytes"]) / size,
    }


def _figures(samples: Sequence[Mapping[str, Any]], part: str) -> dict[str, dict[str, float | None]]:
    named = [name for name, value in samples[0][part].items() if not isinstance(value, str)]
    return {name: spread([sample[part][name] for sample in samples]) for name in named}


def _shown(variant: str, done: Mapping[str, Any]) -> list[list[str]]:
    ratios = done["ratios"]
    bars = {name: f"{'<=' if name in _AT_MOST else '>='} {bar:g}" for name, bar in BARS[variant].items()}
    return [
        [f"{variant}: the tutorial stalls for, s", shown(done["tutorial"]["stall_seconds"]), ""],
        [f"{variant}: ours stalls for, s", shown(done["ours"]["stall_seconds"], digits=3), ""],
        [
            f"{variant}: later steps over 1 ms together, s",
            shown(done["ours"]["later_stall_seconds"], digits=3),
            "",
        ],
        [f"{variant}: times shorter", shown(ratios["stall_ratio"], digits=1), bars["stall_ratio"]],
        [f"{variant}: durable after, s", shown(done["ours"]["durable_seconds"]), ""],
        [f"{variant}: link floor, s", shown(done["floor_seconds"]), ""],
        [f"{variant}: plain socket, s", shown(done["socket_seconds"]), ""],
        [
            f"{variant}: durable to floor",
            shown(ratios["durable_ratio"], digits=3),
            bars["durable_ratio"],
        ],
        [
            f"{variant}: loop while uploading to idle",
            shown(ratios["loop_ratio"]),
            bars["loop_ratio"],
        ],
        [
            f"{variant}: extra memory to checkpoint",
            shown(ratios["memory_ratio"]),
            bars["memory_ratio"],
        ],
        [f"{variant}: the tutorial's extra memory", shown(ratios["tutorial_memory_ratio"]), ""],
        [f"{variant}: first stall, cold, s", f"{done['first']['stall_seconds']:.3f}", ""],
    ]


def _progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Measure, and write what came out."""
    options = _options.read(__doc__, SIZES, "variants", VARIANTS)
    variants = options.variants
    document = _options.head("save", options, BARS)
    document["variants"] = {}
    for variant in variants:
        with sink(options.rate, keep=False, ahead=options.ahead) as link:
            done = measure(variant, options, link)
            document["variants"][variant] = done | {"sink": link.stats()}
    document["load_average_at_end"] = os.getloadavg()
    rows = [["median (least-most)", "", "bar at full size"]]
    for variant in variants:
        rows += _shown(variant, document["variants"][variant])
    _progress(table(rows))
    write(document, options.json)


if __name__ == "__main__":
    main()
