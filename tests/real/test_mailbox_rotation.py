# SPDX-License-Identifier: Apache-2.0
"""Keys that are rotated while letters are under way, in a bucket of a real S3 server with a read-only key."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from spotwatch.clock import SystemClock
from spotwatch.errors import Denied, ProviderError
from spotwatch.mail.mailbox import Heartbeat, Letter
from spotwatch.mail.mailbox_bucket import BucketObjects, bucket_of
from spotwatch.mail.mailbox_keys import SigningKey
from spotwatch.mail.mailbox_writer import MailboxWriter
from spotwatch.providers._do_mailbox import DropletMailbox, Whose, open_mailbox
from spotwatch.relay.outbox import Outbox
from tests.mail.letters import KEY, OURS, letter
from tests.real.s3_servers import BUCKET, READ_KEY, READ_SECRET, S3Server, start

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]

_NEW_KEY = SigningKey(b"n" * 32)


@pytest.fixture(scope="module")
def weed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Return the server that knows read-only keys; it takes some 5 s to start."""
    with start("weed", tmp_path_factory.mktemp("weed-rotation")) as started:
        yield started


def _url(path: Path) -> str:
    return f"s3://{BUCKET}/{path.name.replace('_', '-')}"


def _writer(server: S3Server, path: Path, key: SigningKey) -> MailboxWriter:
    return MailboxWriter(BucketObjects(*bucket_of(_url(path), server.environ())), key)


def _credentials(server: S3Server, path: Path, secret: str) -> Path:
    """Write what a Droplet has: the read-only key."""
    file = path / "mailbox.env"
    file.touch(mode=0o600)
    environ = server.environ(READ_KEY, secret)
    file.write_text("".join(f"{name}={value}\n" for name, value in environ.items()))
    return file


def _mailbox(path: Path, file: Path, *keys: SigningKey) -> DropletMailbox:
    return open_mailbox(
        _url(path),
        [key.public.text for key in keys],
        SystemClock(),
        whose=lambda: Whose(droplet_id=OURS),
        environ={},
        credentials_file=str(file),
    )


def _problem_of(mailbox: DropletMailbox) -> ProviderError | None:
    """Return the problem anew: a type checker takes it for a constant."""
    return mailbox.problem


def _letter(message: str, minutes: float) -> Letter:
    return letter(issued_at=SystemClock().now() + timedelta(minutes=minutes), message=message)


async def test_a_read_only_key_is_rotated_without_a_restart(weed: S3Server, tmp_path: Path) -> None:
    """The old secret is refused; the new one in the file is used at the next poll, and the letter is read."""
    clock, writer = SystemClock(), _writer(weed, tmp_path, KEY)
    await writer.put(letter().to, [_letter("m1", -1)], now=clock.now())
    await writer.beat(Heartbeat(at=clock.now(), interval_seconds=60.0))
    mailbox = _mailbox(tmp_path, _credentials(weed, tmp_path, "another"), KEY)
    assert await mailbox.poll() == ()
    assert isinstance(_problem_of(mailbox), Denied)
    _credentials(weed, tmp_path, READ_SECRET)
    assert [one.to for one in await mailbox.poll()] == [letter().to]
    assert _problem_of(mailbox) is None
    await mailbox.close()
    await writer.close()


async def test_a_signing_key_is_rotated_with_letters_under_way(weed: S3Server, tmp_path: Path) -> None:
    """One is in the bucket by the old key, one waits on disk: with the new one both are heard."""
    clock = SystemClock()
    old = _writer(weed, tmp_path, KEY)
    await old.put(letter().to, [_letter("m1", -2)], now=clock.now())
    away = {**weed.environ(), "AWS_ENDPOINT_URL": "http://127.0.0.1:1"}
    waiting = Outbox(
        MailboxWriter(BucketObjects(*bucket_of(_url(tmp_path), away)), KEY), clock, state_dir=tmp_path
    )
    assert await waiting.post([_letter("m2", -1)])
    assert not await waiting.send()
    new = _writer(weed, tmp_path, _NEW_KEY)
    outbox = Outbox(new, clock, state_dir=tmp_path)
    assert len(outbox) == 1
    assert await outbox.send()
    await new.beat(Heartbeat(at=clock.now(), interval_seconds=60.0))
    file = _credentials(weed, tmp_path, READ_SECRET)
    both = _mailbox(tmp_path, file, KEY, _NEW_KEY)
    assert len(await both.poll()) == 2
    assert both.problem is None
    # Of a Droplet that has only one of the keys the other's letter is a problem, and no letter.
    for key in (KEY, _NEW_KEY):
        one = _mailbox(tmp_path, file, key)
        assert len(await one.poll()) == 1
        assert one.problem is not None
        await one.close()
    for opened in (both, old, new):
        await opened.close()
