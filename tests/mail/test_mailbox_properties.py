# SPDX-License-Identifier: Apache-2.0
"""What holds of letters whatever anybody writes: none without the key, and no weak one moves a strong one."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from spotwatch.errors import Malformed
from spotwatch.mail.mailbox import MAX_STRONG, Address, Heartbeat, Letter, expiry, join
from spotwatch.mail.mailbox_form import read_heartbeat, read_letters, write_heartbeat, write_letters
from spotwatch.model import Evidence
from spotwatch.testing import EPOCH
from tests.mail.letters import KEY, OURS, STRANGER, letter

_OURS = Address(OURS)
_TWO = (letter(), letter("cancel", evidence="weak", message="m2"))
_OBJECT = write_letters(_TWO, KEY, now=EPOCH)
_READ = read_letters(_OBJECT, [KEY.public], to=_OURS, now=EPOCH).letters
_BEAT = write_heartbeat(Heartbeat(at=EPOCH, interval_seconds=60.0), KEY)


@given(st.binary(max_size=400))
def test_bytes_are_never_a_letter(raw: bytes) -> None:
    """Nor an exception."""
    assert read_letters(raw, [KEY.public], to=_OURS, now=EPOCH).letters == ()
    try:
        read_heartbeat(raw, [KEY.public])
    except Malformed:
        return
    raise AssertionError(raw)


@given(at=st.integers(0, len(_OBJECT) - 1), change=st.integers(1, 255))
def test_a_changed_byte_makes_no_other_letter(at: int, change: int) -> None:
    """Wherever it is, each letter is still as it was signed, or not there."""
    raw = bytearray(_OBJECT)
    raw[at] ^= change
    opened = read_letters(bytes(raw), [KEY.public], to=_OURS, now=EPOCH)
    assert set(opened.letters) <= set(_READ)


@given(at=st.integers(0, len(_BEAT) - 1), change=st.integers(1, 255))
def test_a_changed_byte_makes_no_other_sign_of_life(at: int, change: int) -> None:
    """The relay lived when it said so, or nothing is known."""
    raw = bytearray(_BEAT)
    raw[at] ^= change
    try:
        assert read_heartbeat(bytes(raw), [KEY.public]) == Heartbeat(at=EPOCH, interval_seconds=60.0)
    except Malformed:
        return


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=20), inner, max_size=4),
    max_leaves=10,
)
_FIELDS = (
    "version",
    "event",
    "droplet_id",
    "name_hash",
    "at",
    "issued_at",
    "expires_at",
    "evidence",
    "message",
)


@given(changed=st.dictionaries(st.sampled_from(_FIELDS), _json, min_size=1, max_size=4))
def test_a_relay_gone_mad_raises_nothing(changed: dict[str, object]) -> None:
    """Whatever is rightly signed is a letter to us or a problem, never an exception."""
    row = json.loads(json.loads(_OBJECT)["letters"][0]["body"]) | changed
    body = json.dumps(row)
    envelope = {
        "webhook-id": "msg_1",
        "webhook-timestamp": str(int(EPOCH.timestamp())),
        "webhook-signature": KEY.sign("msg_1", int(EPOCH.timestamp()), body.encode(errors="replace")),
        "body": body,
    }
    raw = json.dumps({"letters": [envelope]}).encode()
    opened = read_letters(raw, [KEY.public], to=_OURS, now=EPOCH)
    assert all(one.to == _OURS and one.expires_at > EPOCH for one in opened.letters)


@st.composite
def _letters(draw: st.DrawFn) -> Letter:
    event = draw(st.sampled_from(["reclaim", "cancel", "correction"]))
    minutes = draw(st.integers(0, 170))
    issued_at = EPOCH - timedelta(minutes=minutes)
    at = None if event == "cancel" else EPOCH + timedelta(minutes=draw(st.integers(1, 120)))
    # Copies of one mail have one date.
    made = letter(event, issued_at=issued_at, at=at, message=f"m{minutes}")  # type: ignore[arg-type]  # one of the three
    evidence = draw(st.sampled_from(list(Evidence)))
    return replace(made, evidence=evidence, expires_at=expiry(at, EPOCH))


def _joined(letters: list[Letter]) -> tuple[Letter, ...]:
    known: tuple[Letter, ...] = ()
    for one in letters:
        known = join(known, one, now=EPOCH)
    return known


@given(st.lists(_letters(), max_size=12))
def test_weak_letters_change_nothing_of_the_strong_one(letters: list[Letter]) -> None:
    """In any order and number; and an object has an end."""
    known = _joined(letters)
    assert len(known) <= MAX_STRONG + 1
    strong = _joined([one for one in letters if one.evidence is Evidence.STRONG])
    assert tuple(one for one in known if one.evidence is Evidence.STRONG) == strong


@given(st.lists(_letters(), max_size=12), st.data())
def test_what_came_twice_changes_nothing(letters: list[Letter], data: st.DataObject) -> None:
    """Each letter may be told any number of times right after itself, as services do."""
    doubled = [one for one in letters for _ in range(data.draw(st.integers(1, 3)))]
    assert _joined(doubled) == _joined(letters)


@given(st.lists(_letters(), min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_proven_letters_are_the_same_in_whichever_order_they_came(
    letters: list[Letter], chance: Random
) -> None:
    """What an object holds of them depends on the mails alone."""
    strong = list(
        {(one.event, one.message): one for one in letters if one.evidence is Evidence.STRONG}.values()
    )
    dates = {one.issued_at for one in strong}
    if len(dates) < len(strong):
        return
    mixed = list(strong)
    chance.shuffle(mixed)
    assert _joined(mixed) == _joined(strong)


def test_a_strangers_object_is_no_letter_at_all() -> None:
    """The other way round, as a check of the check."""
    raw = write_letters(_TWO, STRANGER, now=EPOCH)
    assert read_letters(raw, [KEY.public], to=_OURS, now=EPOCH).letters == ()
    assert len(_READ) == 2
