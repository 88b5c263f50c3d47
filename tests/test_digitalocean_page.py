# SPDX-License-Identifier: Apache-2.0
"""The script printed on the DigitalOcean page, run as printed, against the provider's own listener."""

from __future__ import annotations

import asyncio
import base64
import re
import shutil
from pathlib import Path

import pytest

from spotwatch.clock import SystemClock
from spotwatch.model import Certainty, Kind
from spotwatch.providers import Context
from spotwatch.providers.digitalocean import PROVIDER
from spotwatch.server import WebhookServer
from spotwatch.webhooks import parse_secret

PAGE = Path(__file__).parents[1] / "docs" / "digitalocean.md"


@pytest.mark.skipif(
    not all(map(shutil.which, ("bash", "openssl", "curl"))), reason="the page's script needs openssl and curl"
)
async def test_the_script_of_the_page(tmp_path: Path) -> None:
    """Its signature is accepted, one by a wrong secret is not, and the notice is a target."""
    scripts = re.findall(r"```bash\n(#!.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(scripts) == 1
    (tmp_path / "notify").write_text(scripts[0], encoding="utf-8")
    secret = "whsec_" + base64.b64encode(bytes(range(32))).decode()
    (tmp_path / "right").write_text(secret + "\n", encoding="ascii")
    (tmp_path / "wrong").write_text(f"whsec_{base64.b64encode(bytes(32)).decode()}\n", encoding="ascii")
    context = Context(clock=SystemClock(), runtime_dir=tmp_path, webhook_secrets=(parse_secret(secret),))
    results: list[str] = []
    async with PROVIDER(PROVIDER.config_class(droplet_id=512345678), context) as provider:
        server = WebhookServer(
            "127.0.0.1:0",
            receivers={"digitalocean": provider},
            on_request=lambda _, result: results.append(result),
            say=results.append,
        )
        await server.start()
        url = f"http://127.0.0.1:{server.port}/webhook/digitalocean"
        for name, droplet in (("right", 512345678), ("right", 5), ("wrong", 512345678)):
            body = f'{{"event": "reclaim", "droplet_id": {droplet}}}'
            process = await asyncio.create_subprocess_exec(
                "bash", str(tmp_path / "notify"), str(tmp_path / name), url, body,
                stdout=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
            assert await process.wait() == 0
        answer = await provider.notices()
        await server.close()
    assert results == ["accepted", "not_mine", "unsigned"]
    assert [(n.kind, n.certainty) for n in answer.notices] == [(Kind.RECLAIM, Certainty.TARGET)]
