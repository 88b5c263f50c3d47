# SPDX-License-Identifier: Apache-2.0
"""The Cloudflare worker under node: its own tests, and that our receiver takes what it signs.

That Cloudflare makes a temporary failure of an exception is Cloudflare's word, and not tested here.
"""

from __future__ import annotations

import asyncio
import base64
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.mail.inbound.receiver import PATH, listening

FOLDER = Path(__file__).parents[3] / "deploy" / "cloudflare"
SECRET = bytes(range(32))
OTHER = bytes(range(1, 33))
MAIL = b"From: a@example.com\r\nSubject: \xfc\r\n\r\n" + bytes(range(256)) + b"\r\n"
DRIVER = """
import { readFileSync } from "node:fs";
const [path, URL, SECRET] = process.argv.slice(1);
const { default: worker } = await import(path);
const raw = readFileSync(0);
await worker.email({ raw: new Blob([raw]).stream(), rawSize: raw.length }, { URL, SECRET });
"""

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="needs node")


async def post(url: str, secret: bytes, mail: bytes = MAIL) -> subprocess.CompletedProcess[bytes]:
    """Run the worker once on `mail`."""
    text = "whsec_" + base64.b64encode(secret).decode()
    return await asyncio.to_thread(
        subprocess.run,
        ["node", "--input-type=module", "--eval", DRIVER, str(FOLDER / "worker.mjs"), url, text],
        input=mail,
        capture_output=True,
        check=False,
    )


async def test_the_worker_passes_its_own_tests() -> None:
    """`node --test` on the file beside it."""
    done = await asyncio.to_thread(
        subprocess.run,
        ["node", "--test", str(FOLDER / "worker.test.mjs")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


async def test_our_receiver_takes_what_the_worker_signs() -> None:
    """Bytes of every value arrive as they were, as an original that DKIM may hold for."""
    async with listening(SECRET) as hearer:
        done = await post(hearer.url, SECRET)
        assert (done.returncode, done.stderr) == (0, b"")
        again = await post(hearer.url, SECRET)
        assert again.returncode == 0
    assert hearer.mails == [MAIL, MAIL]
    assert {(d.is_original, d.covers_body) for d in hearer.heard} == {(True, True)}
    assert len({d.replay_id for d in hearer.heard}) == 1


async def test_a_wrong_secret_has_the_sender_try_again() -> None:
    """A mistake while setting up costs no mail."""
    async with listening(SECRET) as hearer:
        done = await post(hearer.url, OTHER)
    assert (done.returncode, hearer.mails) == (1, [])
    assert b"spotwatch answers 401" in done.stderr


async def test_a_receiver_that_cannot_now_has_the_sender_try_again() -> None:
    """503 is an exception in the worker."""
    async with listening(SECRET) as hearer:
        hearer.status = 503
        done = await post(hearer.url, SECRET)
    assert done.returncode == 1
    assert b"spotwatch answers 503" in done.stderr


def test_the_settings_name_the_worker_and_no_secret() -> None:
    """The file can be published as it is; the address is the one that the page tells."""
    settings = tomllib.loads((FOLDER / "wrangler.toml").read_text())
    assert (FOLDER / settings["main"]).is_file()
    assert settings["vars"] == {"URL": f"https://HOST{PATH}"}
