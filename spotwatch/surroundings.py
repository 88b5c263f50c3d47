# SPDX-License-Identifier: Apache-2.0
"""What our own SIGTERM means here: a restart of the service, or the end of the machine or pod.

It only looks; what follows is the daemon's business. Standard library only.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
from collections.abc import Mapping

_ASK_SECONDS = 0.5


def is_pod(environ: Mapping[str, str]) -> bool:
    """Tell whether we run in a Kubernetes pod, where SIGTERM means that the whole pod goes."""
    return bool(environ.get("KUBERNETES_SERVICE_HOST"))


async def is_system_stopping() -> bool:
    """Tell whether systemd is shutting the machine down; False where there is no systemd to ask.

    Source: systemctl(1), `is-system-running` prints `stopping` while the manager is shutting down.
    """
    systemctl = shutil.which("systemctl")
    if systemctl is None:
        return False
    with contextlib.suppress(OSError, TimeoutError):
        process = await asyncio.create_subprocess_exec(
            systemctl, "is-system-running", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        try:
            async with asyncio.timeout(_ASK_SECONDS):
                output, _ = await process.communicate()
            return output.strip() == b"stopping"
        except TimeoutError:
            process.kill()
            await process.wait()
    return False
