# SPDX-License-Identifier: Apache-2.0
"""How long a run takes to go on: the tutorial's way to restore and ours, alternately, from the same link.

One trainer saves by both ways to an S3 sink that keeps what it gets. Then fresh processes restore, as after
a reclaim, beside a plain socket that fetches as many bytes. Each is checked to hold every value that was
saved. Ours verifies what it downloads, the tutorial's way does not. JSON goes to stdout or a file, a table
for people to stderr.

    python benchmarks/restore.py                               2,417 MB, 5 rounds: 5 minutes, 13 GB of memory
    python benchmarks/restore.py --size small --repeats 3      60 MB: half a minute
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

import _options
from _bench import MB, Sink, shown, sink, spread, table, worker, write
from _save_worker import BUCKET
from _training import SIZES

WAYS = {"tutorial": ("tutorial", "boto3"), "fast": ("ours", "obstore"), "boto3": ("ours", "boto3")}
BARS = {"fast": 1.2, "boto3": 1.2}
"""At most so many times the link's floor, at full size."""


def save(size: str, link: Sink, *, ahead: bool) -> dict[str, Any]:
    """Save by both ways once, and return what was saved."""
    with worker("_save_worker.py", ["--size", size], link.port, "boto3", ahead=ahead) as trainer:
        state = trainer.do("begin")
        trainer.do("open")
        done = {way: trainer.do(way) for way in ("ours", "tutorial")}
        trainer.do("end")
    sizes = {way: told["size_bytes"] for way, told in done.items()}
    return state | {"size_bytes": sizes, "name": f"{BUCKET}/{done['tutorial']['name']}"}


def restore(way: str, size: str, saved: Mapping[str, Any], link: Sink, *, ahead: bool) -> dict[str, Any]:
    """Restore in a fresh process and return what it took."""
    whose, uploader = WAYS[way]
    with worker(
        "_restore_worker.py", ["--size", size, "--way", whose], link.port, uploader, ahead=ahead
    ) as trainer:
        begun = trainer.do("begin")
        done = trainer.do("restore")
        ended = trainer.do("end")
    if ended["digest"] != saved["digest"]:
        raise SystemExit(f"{way}: restored {ended['digest']}, but {saved['digest']} was saved")
    # The optimizer's state has to lie somewhere whichever way it comes; all beyond it is the way's own.
    needed = begun["memory_peak_bytes"] + ended["tensor_bytes"] - begun["tensor_bytes"]
    return done | {"extra_bytes": done["memory_peak_bytes"] - needed}


def main() -> None:
    """Measure, and write what came out."""
    options = _options.read(__doc__, SIZES, "ways", WAYS)
    ways = options.ways
    document = _options.head("restore", options, BARS)
    with sink(options.rate, keep=True, ahead=options.ahead) as link:
        saved = save(options.size, link, ahead=options.ahead)
        rounds = []
        for number in range(options.repeats):
            order = ways if number % 2 else ways[::-1]
            rounds.append(
                {way: restore(way, options.size, saved, link, ahead=options.ahead) for way in order}
            )
            rounds[-1]["socket"] = {"seconds": link.fetch_seconds(saved["name"])}
            told = {way: round(done["seconds"], 2) for way, done in rounds[-1].items()}
            print(f"round {number + 1} of {options.repeats}: {told} s", file=sys.stderr, flush=True)
        document |= {"saved": saved, "samples": rounds, "sink": link.stats()}
    document |= figures(document, ways, options.rate * MB)
    document["load_average_at_end"] = os.getloadavg()
    print(table(rows(document, ways)), file=sys.stderr, flush=True)
    write(document, options.json)


def figures(document: Mapping[str, Any], ways: list[str], rate: float) -> dict[str, Any]:
    """Return what the samples come to."""
    samples, sizes = document["samples"], document["saved"]["size_bytes"]
    socket_seconds = spread([sample["socket"]["seconds"] for sample in samples])
    found: dict[str, Any] = {"socket_seconds": socket_seconds, "ways": {}}
    for way in ways:
        size = sizes["tutorial" if way == "tutorial" else "ours"]
        floors = [size / rate if rate else sample["socket"]["seconds"] for sample in samples]
        seconds = [sample[way]["seconds"] for sample in samples]
        found["ways"][way] = {
            "seconds": spread(seconds),
            "floor_ratio": spread([took / floor for took, floor in zip(seconds, floors, strict=True)]),
            "memory_ratio": spread([sample[way]["extra_bytes"] / size for sample in samples]),
        }
    return found


def rows(document: Mapping[str, Any], ways: list[str]) -> list[list[str]]:
    """Return the figures for people."""
    found = [["median (least-most)", "restored after, s", "to the floor", "bar at full size", "extra memory"]]
    for way in ways:
        figure = document["ways"][way]
        bar = f"<= {BARS[way]:g}" if way in BARS else ""
        ratio, memory = shown(figure["floor_ratio"], digits=3), shown(figure["memory_ratio"])
        found.append([way, shown(figure["seconds"]), ratio, bar, memory])
    return [*found, ["plain socket", shown(document["socket_seconds"]), "", "", ""]]


if __name__ == "__main__":
    main()
