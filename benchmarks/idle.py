# SPDX-License-Identifier: Apache-2.0
"""What the daemon costs while nothing happens: memory, processor time, descriptors.

A real `spotwatch run` polls an emulated cloud every second. Compared with the bare interpreter and with the
libraries that it cannot do without, in the same run, so that the machine's speed and page cache cancel out.

    python benchmarks/idle.py --seconds 600 --cloud aws
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from spotwatch.emulator import Emulator

LIBRARIES = "import asyncio, aiohttp, structlog, prometheus_client, click, cattrs"


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process, in MiB."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
        if line.startswith("Rss:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"no Rss for pid {pid}")


def processor_seconds(pid: int) -> float:
    """Return the processor time of a process so far, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def count_descriptors(pid: int) -> int:
    """Return how many files and sockets a process has open."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def resident_after(code: str) -> float:
    """Return the resident memory of an interpreter that has run `code`, in MiB."""
    source = f"{code}\nimport os, sys; sys.stdout.write('ready'); sys.stdout.flush(); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.read(5)
        return resident_mib(process.pid)


async def measure(cloud_name: str, seconds: float, samples: int) -> dict[str, Any]:
    """Run the daemon and look at it `samples` times."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        async with Emulator(cloud_name) as cloud:
            environment = {
                **os.environ,
                **cloud.environment,
                "SPOTWATCH_RUNTIME_DIR": f"{folder}/run",
                "SPOTWATCH_STATE_DIR": f"{folder}/state",
                "SPOTWATCH_HTTP__LISTEN": "127.0.0.1:0",
            }
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "spotwatch", "run", "--provider", cloud_name,
                env=environment, stderr=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
            await asyncio.sleep(5)
            began = processor_seconds(process.pid)
            for index in range(samples):
                await asyncio.sleep(seconds / samples)
                passed = seconds / samples * (index + 1)
                used = processor_seconds(process.pid) - began
                rows.append(
                    {
                        "after_seconds": round(passed),
                        "resident_mib": round(resident_mib(process.pid), 1),
                        "descriptors": count_descriptors(process.pid),
                        "core_percent": round(100 * used / passed, 2),
                    }
                )
            requests = len(cloud.requests)
            process.terminate()
            await process.wait()
    return {"cloud": cloud_name, "requests": requests, "samples": rows}


def main() -> None:
    """Measure and print one JSON document."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--samples", type=int, default=10)
    parser.add_argument("--cloud", default="aws")
    args = parser.parse_args()
    result = asyncio.run(measure(args.cloud, args.seconds, args.samples))
    result["bare_interpreter_mib"] = round(resident_after("import asyncio"), 1)
    result["libraries_alone_mib"] = round(resident_after(LIBRARIES), 1)
    last = result["samples"][-1]["resident_mib"]
    result["ratio_to_libraries"] = round(last / result["libraries_alone_mib"], 2)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
