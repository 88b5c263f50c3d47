# SPDX-License-Identifier: Apache-2.0
"""The tutorial's way to save and to restore: everything in the training loop, one step after the other.

What DigitalOcean's tutorial on training on Spot Droplets describes, in words of our own: the state is
serialised into memory and uploaded, a pointer named LATEST is moved, and the oldest are removed after one
listing. Nothing is verified. Imports torch and boto3 when it is used.
"""

from __future__ import annotations

import io
from typing import Any


class Tutorial:
    """Saves model, optimizer and step as the tutorial describes it.

    Args:
        bucket: of the store that the environment names (`AWS_ENDPOINT_URL`).
        run: what the keys begin with.
        keep: how many checkpoints stay.
    """

    def __init__(self, bucket: str, run: str, keep: int = 3) -> None:
        import boto3  # noqa: PLC0415 - whoever only lists the options need not have it

        self._s3: Any = boto3.client("s3")
        self._bucket = bucket
        self._run = run
        self._keep = keep

    def save(self, step: int, model: Any, optimizer: Any) -> tuple[str, int]:
        """Save; return name and bytes of the object once LATEST names it and the old ones are gone."""
        import torch  # noqa: PLC0415 - as above

        memory = io.BytesIO()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, memory)
        size = memory.tell()
        memory.seek(0)
        name = f"{self._run}/step-{step:010d}.pt"
        self._s3.upload_fileobj(memory, self._bucket, name)
        self._s3.put_object(Bucket=self._bucket, Key=f"{self._run}/LATEST", Body=name.encode())
        found = self._s3.list_objects_v2(Bucket=self._bucket, Prefix=f"{self._run}/step-")
        names = sorted(item["Key"] for item in found.get("Contents", ()))
        for old in names[: -self._keep]:
            self._s3.delete_object(Bucket=self._bucket, Key=old)
        return name, size

    def restore(self, model: Any, optimizer: Any) -> int:
        """Load what LATEST names, and return its step."""
        import torch  # noqa: PLC0415 - as above

        latest = self._s3.get_object(Bucket=self._bucket, Key=f"{self._run}/LATEST")
        memory = io.BytesIO()
        self._s3.download_fileobj(self._bucket, latest["Body"].read().decode(), memory)
        memory.seek(0)
        # The tutorial unpickles without limits; the safe way costs no more, and the bucket is ours.
        state = torch.load(memory, map_location="cpu", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        return int(state["step"])
