# SPDX-License-Identifier: Apache-2.0
"""The pages for what one runs oneself: each snippet, as printed, makes a request that our receiver takes.

Where a snippet runs in a service, that service's functions are played as its reference describes them.
"""

from __future__ import annotations

import asyncio
import base64
import email
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from spotwatch.cli._options import Options, load_settings
from tests.mail.inbound.receiver import PATH, Hearer, listening

ROOT = Path(__file__).parents[3]
PAGES = ROOT / "docs" / "mail"
SECRET = bytes(range(32))
TEXT = "whsec_" + base64.b64encode(SECRET).decode()
MAIL = b"From: a@example.com\r\nSubject: \xfc\r\n\r\n" + bytes(range(256)) + b"\r\n"
FIELDS = {
    "subject": "Réclamation",
    "from": "DigitalOcean <support@digitalocean.com>",
    "to": "me@example.com",
    "date": "Sun, 29 Nov 2026 12:00:00 +0000",
    "message_id": "<one@digitalocean.com>",
    "text": "Grüße",
}
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="needs node")

# Apps Script's own functions, as its reference describes them: bytes are numbers from -128 to 127.
GOOGLE = """
const { createHmac } = require("crypto");
const signed = (bytes) => Array.from(new Int8Array(bytes));
const whole = (numbers) => Buffer.from(Int8Array.from(numbers).buffer);
const posted = [], read = [];
const PropertiesService = {
  getScriptProperties: () => ({ getProperties: () => ({ URL: process.argv[2], SECRET: process.argv[3] }) }),
};
const Utilities = {
  base64Decode: (text) => signed(Buffer.from(text, "base64")),
  base64Encode: (numbers) => whole(numbers).toString("base64"),
  newBlob: (text) => ({ getBytes: () => signed(Buffer.from(text, "utf8")) }),
  computeHmacSha256Signature: (value, key) =>
    signed(createHmac("sha256", whole(key)).update(whole(value)).digest()),
};
const mail = require("fs").readFileSync(0);
const raw = process.argv[4] === "text" ? mail.toString("base64url") : signed(mail);
const Gmail = { Users: { Messages: { get: () => ({ raw }) } } };
const answers = JSON.parse(process.argv[5] || '{"18c0ffee": 202}'), labels = {};
const messages = Object.keys(answers).map((id) => (
  { getId: () => id, isUnread: () => true, markRead: () => read.push(id) }));
const threads = messages.map((message) => (
  { getMessages: () => [message], addLabel: (label) => (labels[message.getId()] = label) }));
const GmailApp = { search: () => threads, getUserLabelByName: () => null, createLabel: (name) => name };
const UrlFetchApp = { fetch: (url, o) => {
  const status = answers[o.headers["webhook-id"].replace("gmail-", "")];
  if (status === 0 || (status >= 400 && !o.muteHttpExceptions)) throw new Error("Request failed");
  posted.push([url, { method: o.method, body: o.payload,
    headers: { "content-type": o.contentType, ...o.headers } }]);
  return { getResponseCode: () => status };
} };
"""
SEND = """
post();
(async () => {
  for (const [url, options] of posted) console.log((await fetch(url, options)).status, read.length);
})();
"""
# What the page tells of the request node.
REQUEST_NODE = """
const headers = { "content-type": "application/json", "webhook-id": json.id, "webhook-timestamp": json.at,
  "webhook-signature": json.signature };
fetch(process.argv[3], { method: "POST", body: json.body, headers })
  .then((reply) => console.log(reply.status));
"""


def blocks(page: str, language: str) -> list[str]:
    """Return the code of one language on a page."""
    return re.findall(rf"```{language}\n(.*?)```", (PAGES / f"{page}.md").read_text(), re.DOTALL)


async def run(*argv: str, mail: bytes = b"", environ: dict[str, str] | None = None) -> str:
    """Run a program that must succeed, and return what it prints."""
    done = await asyncio.to_thread(
        subprocess.run,
        argv,
        input=mail,
        capture_output=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, **(environ or {})},
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().strip()


def fields_of(hearer: Hearer) -> dict[str, str]:
    """Return what a composed mail says, decoded."""
    (delivery,) = hearer.heard
    assert not delivery.is_original
    mail = email.message_from_bytes(delivery.raw, policy=email.policy.default)
    found = {name: str(mail[name.replace("_", "-")]) for name in FIELDS if name != "text"}
    return {**found, "text": mail.get_content().strip()}


@pytest.mark.parametrize("page", ["scripts", "postfix", pytest.param("cloudflare", marks=needs_node)])
async def test_the_pages_script_proves_it(page: str, tmp_path: Path) -> None:
    """Run as printed, the mail arrives byte for byte."""
    [script] = [code for code in blocks(page, "bash") if "Usage: prove" in code]
    for name, content in (("prove", script), ("secret", TEXT), ("mail.eml", MAIL)):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        path.chmod(0o600)
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    async with listening(SECRET) as hearer:
        arguments = [str(tmp_path / "secret"), hearer.url, str(tmp_path / "mail.eml")]
        said = await run("bash", str(tmp_path / "prove"), *arguments, environ={"PATH": programs})
    assert said
    assert hearer.mails == [MAIL]


async def test_the_python_of_the_page_posts_a_mail(tmp_path: Path) -> None:
    """The standard library is enough."""
    [code] = blocks("scripts", "python")
    (tmp_path / "secret").write_text(TEXT + "\n")
    async with listening(SECRET) as hearer:
        said = await run(sys.executable, "-c", code, str(tmp_path / "secret"), hearer.url, mail=MAIL)
    assert (said, hearer.mails) == ("202", [MAIL])


@needs_node
@pytest.mark.parametrize("form", ["bytes", "text"])
async def test_the_apps_script_of_the_page_posts_a_mail(form: str, tmp_path: Path) -> None:
    """Signed bytes and all: whichever way Gmail hands the mail over, it arrives as it was."""
    [code] = [code for code in blocks("scripts", "javascript") if "GmailApp" in code]
    (tmp_path / "post.cjs").write_text(GOOGLE + code + SEND)
    async with listening(SECRET) as hearer:
        said = await run("node", str(tmp_path / "post.cjs"), hearer.url, TEXT, form, mail=MAIL)
    assert (said, hearer.mails) == ("202 1", [MAIL])
    assert hearer.heard[0].is_original


@needs_node
async def test_one_bad_mail_holds_up_no_other_in_apps_script(tmp_path: Path) -> None:
    """What fails stays unread, what is refused for good is labelled, and the genuine one behind is posted."""
    [code] = [code for code in blocks("scripts", "javascript") if "GmailApp" in code]
    told = "try { post(); } catch (error) { console.log(error.message); }"
    show = "console.log(JSON.stringify([read, labels]));"
    (tmp_path / "post.cjs").write_text(f"{GOOGLE}\n{code}\n{told}\n{show}")
    answers = {"huge": 413, "dead": 0, "busy": 503, "other": 401, "genuine": 202}
    arguments = (str(tmp_path / "post.cjs"), "x", TEXT, "bytes", json.dumps(answers))
    said, kept = (await run("node", *arguments, mail=MAIL)).splitlines()
    assert json.loads(kept) == [["huge", "genuine"], {"huge": "spotwatch-refused"}]
    assert said == "dead: Request failed; busy: spotwatch answers 503; other: spotwatch answers 401"


@needs_node
@pytest.mark.parametrize(
    ("status", "said"),
    [(400, "400"), (413, "413"), (401, "spotwatch answers 401"), (503, "spotwatch answers 503")],
)
async def test_only_what_may_go_better_is_a_failure_in_zapier(status: int, said: str, tmp_path: Path) -> None:
    """A Zap that fails often is switched off."""
    [code] = [code for code in blocks("scripts", "javascript") if "inputData" in code]
    (tmp_path / "zap.cjs").write_text(
        f"const inputData = {{ url: 'x', secret: '{TEXT}' }};\n"
        f"const fetch = async () => ({{ ok: false, status: {status} }});\n(async () => {{\n{code}\n}})()"
        ".then((output) => console.log(output.status), (error) => console.log(error.message));"
    )
    assert await run("node", str(tmp_path / "zap.cjs")) == said


@needs_node
async def test_the_hexadecimal_of_the_page_is_right() -> None:
    """Numbers from -128 to 127 become two digits each."""
    [expression] = re.findall(r"`(bytes\.map.*?)`", (PAGES / "scripts.md").read_text())
    code = f"const bytes = [0, 15, 127, -128, -1]; console.log({expression})"
    assert await run("node", "--eval", code) == "000f7f80ff"


@needs_node
async def test_the_zapier_code_of_the_page_posts_a_mail(tmp_path: Path) -> None:
    """A code step is the body of an asynchronous function."""
    [code] = [code for code in blocks("scripts", "javascript") if "inputData" in code]
    (tmp_path / "zap.cjs").write_text(
        f"const inputData = JSON.parse(process.argv[2]);\n(async () => {{\n{code}\n}})()"
        ".then((output) => console.log(output.status));"
    )
    async with listening(SECRET) as hearer:
        data = {"url": hearer.url, "secret": TEXT, **FIELDS}
        assert await run("node", str(tmp_path / "zap.cjs"), json.dumps(data)) == "202"
        assert fields_of(hearer) == FIELDS


@needs_node
async def test_the_n8n_code_of_the_page_signs_a_mail(tmp_path: Path) -> None:
    """What the code node returns is what the request node sends."""
    [code] = [code for code in blocks("scripts", "javascript") if "$json" in code]
    item = {
        **{name: FIELDS[name] for name in ("subject", "from", "to", "date")},
        "metadata": {"message-id": FIELDS["message_id"]},
        "textPlain": FIELDS["text"],
    }
    (tmp_path / "node.cjs").write_text(
        "const $json = JSON.parse(process.argv[2]), $env = process.env;\n"
        f"const {{ json }} = (() => {{\n{code}\n}})();\n{REQUEST_NODE}"
    )
    async with listening(SECRET) as hearer:
        arguments = (str(tmp_path / "node.cjs"), json.dumps(item), hearer.url)
        assert await run("node", *arguments, environ={"SPOTWATCH_SECRET": TEXT}) == "202"
        assert fields_of(hearer) == FIELDS


@pytest.mark.parametrize("page", ["scripts", "postfix", "cloudflare", "ses"])
def test_the_settings_of_the_page_load(page: str, tmp_path: Path) -> None:
    """As printed, with the secret files elsewhere."""
    [toml] = blocks(page, "toml")
    for name in re.findall(r"/etc/spotwatch/([a-z-]+)", toml):
        (tmp_path / name).write_text(TEXT)
        (tmp_path / name).chmod(0o600)
    config = tmp_path / "spotwatch.toml"
    config.write_text(toml.replace("/etc/spotwatch", str(tmp_path)))
    settings = load_settings(Options(config=config), environ={}).settings
    assert settings.webhook.listen == "127.0.0.1:9476"
    assert set(settings.inbound) == {"scripts": set(), "ses": {"ses"}}.get(page, {"standard"})


@pytest.mark.parametrize("page", ["scripts", "postfix", "cloudflare"])
def test_the_page_names_the_address(page: str) -> None:
    """Path and host are as the other pages write them."""
    assert f"https://HOST{PATH}" in (PAGES / f"{page}.md").read_text()
