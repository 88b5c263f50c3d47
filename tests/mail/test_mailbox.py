# SPDX-License-Identifier: Apache-2.0
"""Letters as objects: signed so that only the relay can write one, read so that nothing else counts.

And what is in force when several were written.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from spotwatch.errors import Malformed
from spotwatch.mail.mailbox import BROADCAST, Address, Heartbeat, Letter, address_of_name, join
from spotwatch.mail.mailbox_form import (
    MAX_OBJECT_BYTES,
    read_heartbeat,
    read_letters,
    write_heartbeat,
    write_letters,
)
from spotwatch.mail.mailbox_keys import SigningKey
from spotwatch.model import Evidence, to_rfc3339
from spotwatch.testing import EPOCH
from tests.mail.letters import HOUR, KEY, OURS, STRANGER, letter

_KEYS = [KEY.public]
_NAME = address_of_name("Spot-1")


def _written(*letters: Letter, key: SigningKey = KEY) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(write_letters(letters, key, now=EPOCH))
    return document


def _signed(row: dict[str, Any], *, key: SigningKey = KEY, at: int = int(EPOCH.timestamp())) -> bytes:
    """Return an object with one letter of any content."""
    body = json.dumps(row)
    return json.dumps(
        {
            "letters": [
                {
                    "webhook-id": "msg_1",
                    "webhook-timestamp": str(at),
                    "webhook-signature": key.sign("msg_1", at, body.encode()),
                    "body": body,
                }
            ]
        }
    ).encode()


def _row(**changes: Any) -> dict[str, Any]:
    row = {
        "version": 1,
        "event": "reclaim",
        "droplet_id": OURS,
        "at": to_rfc3339(EPOCH + 2 * HOUR),
        "issued_at": to_rfc3339(EPOCH),
        "expires_at": to_rfc3339(EPOCH + 8 * HOUR),
        "evidence": "strong",
    }
    return {key: value for key, value in {**row, **changes}.items() if value is not ...}


@pytest.mark.parametrize(
    "sent",
    [
        letter(),
        letter(evidence="weak"),
        letter("cancel"),
        letter("correction", at=EPOCH + HOUR),
        letter(to=_NAME, evidence="weak"),
        letter(to=BROADCAST, evidence="weak"),
    ],
)
def test_a_letter_comes_back_as_it_was_sent(sent: Letter) -> None:
    """Writing and reading lose nothing, and give it an id that stays the same."""
    first, second = (
        read_letters(write_letters([sent], KEY, now=EPOCH + later), _KEYS, to=sent.to, now=EPOCH)
        for later in (timedelta(0), timedelta(minutes=5))
    )
    assert first == second
    assert first.problem is None
    assert [replace(one, letter_id="") for one in first.letters] == [sent]
    assert first.letters[0].letter_id


def test_keys_of_objects_are_fixed() -> None:
    """Where a letter lies is part of the contract, and a name is never readable in it."""
    assert Address(OURS).key == "reclaims/512345678.json"
    assert BROADCAST.key == "reclaims/broadcast.json"
    assert address_of_name(" spot-1 ") == _NAME
    assert _NAME.key == f"reclaims/by-name/{hashlib.sha256(b'spot-1').hexdigest()}.json"


@pytest.mark.hostile(69)
@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b" " * (MAX_OBJECT_BYTES + 1),
        b"x" * 10_000_000,
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b'{"letters": null}',
        b'{"letters": [1]}',
        b'{"letters": [{}]}',
        b'{"letters": [' + b"{}," * 8 + b"{}]}",
        b'{"letters": [], "letters": []}',
        b"[" * 20_000,
        b'{"letters": [{"webhook-id": 5}]}',
        b"<html>403</html>",
        write_letters([letter()], STRANGER, now=EPOCH),
        write_letters([letter(to=Address(OURS + 1))], KEY, now=EPOCH),
        write_letters([letter(to=_NAME)], KEY, now=EPOCH),
        write_letters([letter()], KEY, now=EPOCH).replace(b"strong", b"strung"),
        write_heartbeat(Heartbeat(at=EPOCH, interval_seconds=60.0), KEY),
        _signed(_row(droplet_id=str(OURS))),
        _signed(_row(droplet_id=True)),
        _signed(_row(version="1")),
        _signed(_row(version=...)),
        _signed(_row(event="explode")),
        _signed(_row(at=None)),
        _signed(_row(at="2026-11-29 16:00")),
        _signed(_row(expires_at=None)),
        _signed(_row(evidence="certain")),
        _signed(_row(issued_at=5)),
        _signed({"version": 99}),
        _signed(_row(version=99, droplet_id=OURS + 1)),
        _signed(_row(), at=999_999_999_999),
    ],
    ids=map(str, itertools.count()),
)
def test_an_object_that_is_no_letter_of_the_relay_to_us_says_nothing(raw: bytes) -> None:
    """Empty, huge, broken, forged, moved or not as documented: no letter, and a problem for the metrics."""
    opened = read_letters(raw, _KEYS, to=Address(OURS), now=EPOCH)
    assert opened.letters == ()
    assert isinstance(opened.problem, Malformed)


@pytest.mark.hostile(69)
def test_a_letter_of_a_later_version_flushes() -> None:
    """What a newer relay says to us cannot be read, so it may cost a save and never the trainer."""
    opened = read_letters(
        _signed(_row(version=99, event="annihilate", at=7)), _KEYS, to=Address(OURS), now=EPOCH
    )
    assert [(one.event, one.evidence) for one in opened.letters] == [("reclaim", Evidence.WEAK)]
    assert "version 99" in opened.letters[0].detail
    later = EPOCH + 9 * HOUR
    assert read_letters(_signed(_row(version=99)), _KEYS, to=Address(OURS), now=later).letters == ()


@pytest.mark.hostile(69)
def test_an_expired_letter_is_passed_over_in_silence() -> None:
    """Six hours after its deadline a letter means nothing, and is no fault either."""
    raw = write_letters([letter()], KEY, now=EPOCH)
    assert len(read_letters(raw, _KEYS, to=Address(OURS), now=EPOCH + 7.9 * HOUR).letters) == 1
    opened = read_letters(raw, _KEYS, to=Address(OURS), now=EPOCH + 8 * HOUR)
    assert opened.letters == ()
    assert opened.problem is None


@pytest.mark.hostile(69)
def test_a_letter_out_of_the_future_is_weak() -> None:
    """When one of two clocks is wrong, the trainer may save and is not stopped."""
    raw = write_letters([letter()], KEY, now=EPOCH + HOUR)
    assert [one.evidence for one in read_letters(raw, _KEYS, to=Address(OURS), now=EPOCH).letters] == ["weak"]


@pytest.mark.parametrize("to", [_NAME, BROADCAST])
def test_only_a_letter_by_number_is_strong(to: Address) -> None:
    """A name may be another Droplet's too, and a broadcast is for everybody, whatever the letter claims."""
    raw = write_letters([letter(to=to)], KEY, now=EPOCH)
    assert [one.evidence for one in read_letters(raw, _KEYS, to=to, now=EPOCH).letters] == ["weak"]


def test_one_bad_letter_does_not_hide_a_good_one() -> None:
    """The good one is read, the bad one is a problem."""
    document = _written(letter(), letter(evidence="weak"))
    document["letters"][0]["body"] += " "
    opened = read_letters(json.dumps(document).encode(), _KEYS, to=Address(OURS), now=EPOCH)
    assert [one.evidence for one in opened.letters] == ["weak"]
    assert opened.problem is not None
    assert "mailbox_keys" in opened.problem.mend


def test_what_a_letter_says_cannot_steer_a_terminal() -> None:
    """Its detail is short and harmless even if the relay's was not."""
    raw = _signed(_row(detail="\x1b[2J\n" + "x" * 5000))
    (read,) = read_letters(raw, _KEYS, to=Address(OURS), now=EPOCH).letters
    assert read.detail.isprintable()
    assert len(read.detail) <= 200


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "empty"),
        (b"[]", "expected an object"),
        (write_heartbeat(Heartbeat(at=EPOCH, interval_seconds=60.0), STRANGER), "none of mailbox_keys"),
        (json.dumps(_written(letter())["letters"][0]).encode(), "no heartbeat"),
    ],
)
def test_a_sign_of_life_of_anybody_else_is_none(raw: bytes, says: str) -> None:
    """Nobody without the relay's key can make a dead relay look alive."""
    with pytest.raises(Malformed, match=says):
        read_heartbeat(raw, _KEYS)


def test_a_sign_of_life_comes_back() -> None:
    """Its moment and its interval are what the relay said."""
    beat = Heartbeat(at=EPOCH, interval_seconds=60.0)
    assert read_heartbeat(write_heartbeat(beat, KEY), _KEYS) == beat


_RECLAIM = letter(at=EPOCH + 2 * HOUR)
_LATER = letter(issued_at=EPOCH + HOUR, at=EPOCH + 2.5 * HOUR, message="m2")
_CANCEL = letter("cancel", issued_at=EPOCH + 0.5 * HOUR, message="m4")
_CORRECTION = letter("correction", issued_at=EPOCH + HOUR, at=EPOCH + 3 * HOUR, message="m5")
_WEAK = letter(evidence="weak", issued_at=EPOCH + HOUR, message="m6")
_WEAK_CANCEL = letter("cancel", evidence="weak", issued_at=EPOCH + 1.2 * HOUR, message="m7")


@pytest.mark.parametrize(
    ("told", "held"),
    [
        ([_RECLAIM], [("reclaim", "strong", 2.0)]),
        ([_RECLAIM, _RECLAIM], [("reclaim", "strong", 2.0)]),
        ([_RECLAIM, _CANCEL], [("reclaim", "strong", 2.0), ("cancel", "strong", None)]),
        ([_CANCEL, _RECLAIM], [("reclaim", "strong", 2.0), ("cancel", "strong", None)]),
        ([_RECLAIM, _LATER], [("reclaim", "strong", 2.0), ("reclaim", "strong", 2.5)]),
        ([_LATER, _RECLAIM, _LATER], [("reclaim", "strong", 2.0), ("reclaim", "strong", 2.5)]),
        ([_CORRECTION, _RECLAIM], [("reclaim", "strong", 2.0), ("correction", "strong", 3.0)]),
        ([_RECLAIM, _WEAK], [("reclaim", "strong", 2.0), ("reclaim", "weak", 3.0)]),
        ([_WEAK, _RECLAIM], [("reclaim", "strong", 2.0), ("reclaim", "weak", 3.0)]),
        ([_RECLAIM, _WEAK_CANCEL], [("reclaim", "strong", 2.0), ("cancel", "weak", None)]),
        ([_WEAK, _WEAK_CANCEL], [("cancel", "weak", None)]),
        ([_CANCEL, _WEAK], [("cancel", "strong", None), ("reclaim", "weak", 3.0)]),
    ],
    ids=map(str, itertools.count()),
)
def test_what_an_object_holds(told: list[Letter], held: list[tuple[str, str, float | None]]) -> None:
    """Each proven letter by the date of its mail, and the last weak one, which displaces none of them."""
    known: tuple[Letter, ...] = ()
    for one in told:
        known = join(known, one, now=EPOCH)
    found = [
        (one.event, str(one.evidence), None if one.at is None else (one.at - EPOCH) / HOUR) for one in known
    ]
    assert found == held


@pytest.mark.hostile(46)
def test_a_late_copy_of_what_was_called_off_changes_nothing() -> None:
    """The same notice by a second, slower way comes after its cancel and after the next notice."""
    cancel = letter("cancel", issued_at=EPOCH + HOUR / 2, message="m2")
    second = letter(issued_at=EPOCH + 2 * HOUR / 3, at=EPOCH + 8 * HOUR / 3, message="m3")
    known: tuple[Letter, ...] = ()
    for one in (_RECLAIM, cancel, second):
        known = join(known, one, now=EPOCH)
    assert join(known, _RECLAIM, now=EPOCH) == known


def test_an_old_letter_does_not_stand_in_the_way_of_a_new_one() -> None:
    """What has expired is forgotten, also when it was issued later than what comes now."""
    known = join((), replace(_LATER, expires_at=EPOCH + HOUR), now=EPOCH)
    assert join(known, _RECLAIM, now=EPOCH + 2 * HOUR) == (_RECLAIM,)


def test_floods_of_weak_letters_leave_the_strong_one() -> None:
    """However many forged mails come, an object has one weak letter, and stays small."""
    known: tuple[Letter, ...] = (_RECLAIM,)
    for number in range(1000):
        known = join(
            known,
            replace(_WEAK, message=f"f{number}", issued_at=EPOCH + timedelta(seconds=number)),
            now=EPOCH,
        )
    assert len(known) == 2
    assert _RECLAIM in known
    assert len(write_letters(known, KEY, now=EPOCH)) < 4096


@pytest.mark.parametrize("field", ["webhook-id", "webhook-timestamp", "webhook-signature", "body"])
def test_nothing_of_a_letter_can_be_changed(field: str) -> None:
    """One more character anywhere in it, and it is not the relay's any more."""
    document = _written(letter())
    document["letters"][0][field] += "1"
    assert read_letters(json.dumps(document).encode(), _KEYS, to=Address(OURS), now=EPOCH).letters == ()
