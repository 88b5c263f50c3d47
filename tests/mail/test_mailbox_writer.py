# SPDX-License-Identifier: Apache-2.0
"""What a relay writes: joined with what is there, read back, and not written when it is there already."""

from __future__ import annotations

import json

import pytest

from spotwatch.errors import Denied, Malformed, ProviderError, Unavailable
from spotwatch.mail.mailbox import BROADCAST, Address
from spotwatch.mail.mailbox_bucket import BucketObjects, bucket_of
from spotwatch.mail.mailbox_form import read_letters
from spotwatch.mail.mailbox_writer import MailboxWriter
from spotwatch.testing import EPOCH
from tests.mail.letters import HOUR, KEY, OURS, STRANGER, MemoryObjects, letter
from tests.train.s3_stand_in import S3StandIn, refusal

_OURS = Address(OURS)


def _bucket(stand_in: S3StandIn) -> BucketObjects:
    environ = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "us-east-1"}
    return BucketObjects(*bucket_of("s3://mail/fleet", {**environ, "AWS_ENDPOINT_URL": stand_in.url}))


async def test_a_writer_joins_what_the_mailbox_holds() -> None:
    """A relay that has lost its own state, or stands beside another one, displaces nothing."""
    objects = MemoryObjects()
    strong, weak = letter(), letter(evidence="weak", issued_at=EPOCH + HOUR, message="m2")
    await MailboxWriter(objects, KEY).put(_OURS, [strong], now=EPOCH)
    await MailboxWriter(objects, KEY).put(_OURS, [weak], now=EPOCH)
    opened = read_letters(objects.objects[_OURS.key], [KEY.public], to=_OURS, now=EPOCH)
    assert [str(one.evidence) for one in opened.letters] == ["strong", "weak"]


async def test_a_new_key_loses_no_letter_of_the_old_one() -> None:
    """After a rotation an unproven letter comes: the proven one is still there for who knows both keys."""
    objects, keys = MemoryObjects(), [KEY.public, STRANGER.public]
    weak = letter(evidence="weak", issued_at=EPOCH + HOUR, message="m2")
    await MailboxWriter(objects, STRANGER).put(_OURS, [letter()], now=EPOCH)
    for number in range(3):
        await MailboxWriter(objects, KEY).put(_OURS, [weak], now=EPOCH + number * HOUR)
    opened = read_letters(objects.objects[_OURS.key], keys, to=_OURS, now=EPOCH + 3 * HOUR)
    assert [str(one.evidence) for one in opened.letters] == ["strong", "weak"]
    assert opened.problem is None
    later = letter("cancel", issued_at=EPOCH + 9 * HOUR, message="m3")
    await MailboxWriter(objects, KEY).put(_OURS, [later], now=EPOCH + 9 * HOUR)
    assert len(json.loads(objects.objects[_OURS.key])["letters"]) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"body": "x" * 5000},
        {"body": "\x00" * 4000},
        {"body": 5},
        {"body": "\u20ac"},
        {"webhook-id": "a.b"},
        {"webhook-timestamp": "99999999999"},
        {"webhook-timestamp": "1"},
    ],
)
async def test_what_is_no_letter_is_not_carried_on(change: dict[str, object]) -> None:
    """Who may write to the bucket cannot make an object too large, or full for longer than a letter lasts."""
    objects = MemoryObjects()
    await MailboxWriter(objects, STRANGER).put(_OURS, [letter()], now=EPOCH)
    found = json.loads(objects.objects[_OURS.key])
    found["letters"] = [found["letters"][0] | change] * 8
    objects.objects[_OURS.key] = json.dumps(found).encode()
    await MailboxWriter(objects, KEY).put(_OURS, [letter()], now=EPOCH)
    opened = read_letters(objects.objects[_OURS.key], [KEY.public], to=_OURS, now=EPOCH)
    assert (len(opened.letters), opened.problem) == (1, None)


async def test_letters_of_others_leave_room_for_ours() -> None:
    """However many are there, and however they are escaped, both of ours can be read afterwards."""
    objects = MemoryObjects()
    await MailboxWriter(objects, STRANGER).put(_OURS, [letter()], now=EPOCH)
    found = json.loads(objects.objects[_OURS.key])
    found["letters"] = [found["letters"][0] | {"body": '"' * 3800}] * 8
    objects.objects[_OURS.key] = json.dumps(found, separators=(",", ":")).encode()
    await MailboxWriter(objects, KEY).put(_OURS, [letter(), letter(evidence="weak")], now=EPOCH)
    opened = read_letters(objects.objects[_OURS.key], [KEY.public], to=_OURS, now=EPOCH)
    assert len(opened.letters) == 2


async def test_a_writer_does_not_write_what_is_there() -> None:
    """The same mail once more changes no object, so that no Droplet reads it again."""
    objects = MemoryObjects()
    for _ in range(3):
        await MailboxWriter(objects, KEY).put(BROADCAST, [letter(to=BROADCAST, evidence="weak")], now=EPOCH)
    assert objects.written == [BROADCAST.key]


async def test_a_writer_replaces_what_is_no_object_of_ours() -> None:
    """Rubbish in a letter's place must not keep a letter out."""
    objects = MemoryObjects(objects={_OURS.key: b"rubbish"})
    await MailboxWriter(objects, KEY).put(_OURS, [letter()], now=EPOCH)
    assert len(read_letters(objects.objects[_OURS.key], [KEY.public], to=_OURS, now=EPOCH).letters) == 1


async def test_what_is_written_is_read_back() -> None:
    """A bucket that says yes and keeps something else is found out, and the outbox tries again."""
    objects = MemoryObjects()
    put = objects.put

    async def lie(key: str, body: bytes) -> None:
        await put(key, body[:-20])

    objects.put = lie  # type: ignore[method-assign]  # the same, but for the end
    with pytest.raises(Malformed, match="something else"):
        await MailboxWriter(objects, KEY).put(_OURS, [letter()], now=EPOCH)
    objects.put = put  # type: ignore[method-assign]  # as before
    await MailboxWriter(objects, KEY).put(_OURS, [letter()], now=EPOCH)
    assert len(objects.written) == 2


async def test_a_writer_that_gets_no_answer_does_not_write() -> None:
    """Writing blindly could displace a strong letter; the outbox tries again."""
    objects = MemoryObjects(errors={_OURS.key: Unavailable("500")})
    with pytest.raises(Unavailable):
        await MailboxWriter(objects, KEY).put(_OURS, [letter()], now=EPOCH)
    assert objects.written == []


async def test_a_writer_that_may_not_read_writes_what_it_knows() -> None:
    """Who may not list is told 403 of an object that is not there yet: no reason to keep a letter back."""
    reply = refusal(403, "AccessDenied")
    with S3StandIn(lambda call: reply if call.method == "GET" else None) as stand_in:
        await MailboxWriter(_bucket(stand_in), KEY).put(_OURS, [letter()], now=EPOCH)
        assert [call.method for call in stand_in.calls] == ["GET", "PUT"]


@pytest.mark.parametrize("error", [Denied("403"), Malformed("400 RequestTimeout"), Malformed("too large")])
async def test_a_weak_letter_never_replaces_what_cannot_be_read(error: ProviderError) -> None:
    """A strong one may be there; the weak one waits, and who must give the right to list is told so."""
    objects = MemoryObjects(errors={_OURS.key: error})
    with pytest.raises(type(error)) as caught:
        await MailboxWriter(objects, KEY).put(_OURS, [letter(evidence="weak")], now=EPOCH)
    assert objects.written == []
    if isinstance(error, Denied):
        assert "s3:ListBucket" in caught.value.mend
