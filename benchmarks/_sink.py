# SPDX-License-Identifier: Apache-2.0
"""An S3 server behind a slow link, for benchmarks: it carries so many bytes a second over all connections.

It is a process of its own, so that its work is not taken for the client's. `GET /_stats` tells in JSON what
it has carried and how much CPU that took. It checks no credentials and listens on loopback only.

    python benchmarks/_sink.py --rate 240             prints its port; bulk is counted and dropped
    python benchmarks/_sink.py --rate 240 --keep      bulk stays in memory, to be read back
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import sys
import threading
import time

from _sink_s3 import S3
from _sink_wire import Gone, Pace, Wire

_MB = 1_000_000


def serve(sock: socket.socket, pace: Pace, s3: S3) -> None:
    """Answer one connection until it ends."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    wire = Wire(sock, pace)
    with sock, contextlib.suppress(Gone, ConnectionError):
        while True:
            request = wire.request()
            if request.path == "/_stats":
                wire.answer(200, {"Content-Type": "application/json"}, json.dumps(stats(pace, s3)).encode())
            else:
                s3.answer(wire, request)
            if request.headers.get("connection", "").lower() == "close":
                return


def stats(pace: Pace, s3: S3) -> dict[str, object]:
    """Return what was carried so far, in bytes of bodies, and the CPU seconds of this process."""
    return {
        "bytes": pace.bytes,
        "requests": s3.counts(),
        "cpu_seconds": time.process_time(),
        "nice": os.nice(0),
        "latest_put_at": s3.latest_put_at(),
    }


def end_with_stdin() -> None:
    """End the process when whoever started it is gone."""
    sys.stdin.buffer.read()
    os._exit(0)


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rate", type=float, default=240.0, help="MB/s over all connections; 0: no limit")
    bulk = parser.add_mutually_exclusive_group()
    bulk.add_argument("--discard", action="store_true", help="bulk is only counted (the default)")
    bulk.add_argument("--keep", action="store_true", help="keep bulk in memory, so that it can be read back")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--until-eof", action="store_true", help="end when stdin is closed")
    options = parser.parse_args()
    # What the machine at one end computes slows no link. Without the right to it, the sink waits its turn.
    with contextlib.suppress(PermissionError):
        os.nice(-10)
    if options.until_eof:
        threading.Thread(target=end_with_stdin, daemon=True).start()
    pace, s3 = Pace(options.rate * _MB), S3(keep=options.keep)
    with socket.create_server(("127.0.0.1", options.port), backlog=64) as server:
        print(server.getsockname()[1], flush=True)
        while True:
            sock, _ = server.accept()
            threading.Thread(target=serve, args=(sock, pace, s3), daemon=True).start()


if __name__ == "__main__":
    main()
