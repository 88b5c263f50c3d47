# SPDX-License-Identifier: Apache-2.0
"""Signatures that count and those that do not, and the memory that makes each count once.

It does not test any listener.
"""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotwatch.errors import ConfigError
from spotwatch.webhooks import Rejected, ReplayCache, parse_secret, sign, signed_at, signed_headers, verify

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
STAMP = int(NOW.timestamp())
SECRET = bytes(range(32))
OLD_SECRET = bytes(range(100, 132))
BODY = b'{"event": "reclaim", "droplet_id": 7}'


def headers(**changes: str) -> dict[str, str]:
    """Return rightly signed headers, then changed; an empty value removes one."""
    made = signed_headers(SECRET, "msg_1", STAMP, BODY)
    made.update({f"webhook-{name}": value for name, value in changes.items()})
    return {name: value for name, value in made.items() if value}


def check(given_headers: dict[str, str], body: bytes = BODY, secrets: tuple[bytes, ...] = (SECRET,)) -> str:
    """Verify at NOW."""
    return verify(given_headers, body, secrets, now=NOW, tolerance_seconds=300)


def reason(given_headers: dict[str, str], body: bytes = BODY, secrets: tuple[bytes, ...] = (SECRET,)) -> str:
    """Return why a request is rejected."""
    with pytest.raises(Rejected) as caught:
        check(given_headers, body, secrets)
    return caught.value.reason


def test_the_published_example_verifies() -> None:
    """The vector of the Standard Webhooks libraries (secret, id, time, body, signature) holds."""
    secret = parse_secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    body = b'{"test": 2432232314}'
    wanted = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert sign(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body) == wanted
    given_headers = {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": wanted,
    }
    at = datetime.fromtimestamp(1614265330, UTC)
    assert verify(given_headers, body, [secret], now=at) == "msg_p5jXN8AQM9LWM0D4loKWxJek"
    assert signed_at(given_headers) == at


@pytest.mark.parametrize("size", [24, 32, 64])
def test_secrets_of_the_allowed_sizes_are_read(size: int) -> None:
    """24 to 64 bytes, as the specification says; a line break of the file is no part of it."""
    key = bytes(size)
    assert parse_secret("whsec_" + base64.b64encode(key).decode() + "\n") == key


@pytest.mark.hostile(16)
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is empty"),
        ("  \n", "is empty"),
        ("hunter2hunter2hunter2hunter2hunter2", "does not begin with whsec_"),
        ("whsec_", "has 0 bytes"),
        ("whsec_" + base64.b64encode(bytes(23)).decode(), "has 23 bytes"),
        ("whsec_" + base64.b64encode(bytes(65)).decode(), "has 65 bytes"),
        ("whsec_not base64!", "is not base64"),
        ("whsec_\u0661" + "A" * 40, "is not base64"),
    ],
)
def test_bad_secrets_are_refused_without_being_repeated(text: str, why: str) -> None:
    """The message says what is wrong and how to make one, and never shows the secret."""
    with pytest.raises(ConfigError, match=why) as caught:
        parse_secret(text)
    assert "openssl rand" in str(caught.value)
    assert not text.strip() or text.strip() == "whsec_" or text.strip() not in str(caught.value)


def test_a_right_signature_gives_the_id() -> None:
    """What the sender made, the receiver takes."""
    assert check(headers()) == "msg_1"


@pytest.mark.hostile(8)
@pytest.mark.parametrize("body", [BODY + b" ", BODY.replace(b" ", b""), b"", BODY[::-1]])
def test_a_changed_body_is_rejected(body: bytes) -> None:
    """One blank or a re-serialised JSON is another body."""
    assert reason(headers(), body) == "signature"


@pytest.mark.hostile(9)
def test_both_keys_count_during_a_rotation_and_the_old_one_no_longer_after_it() -> None:
    """Every secret is tried; one removed is worth nothing."""
    old = signed_headers(OLD_SECRET, "msg_1", STAMP, BODY)
    assert check(old, secrets=(SECRET, OLD_SECRET)) == "msg_1"
    assert reason(old, secrets=(SECRET,)) == "signature"
    assert reason(headers(), secrets=()) == "signature"


def test_one_right_signature_among_others_counts() -> None:
    """A sender may list several, of other versions and of other keys."""
    right = headers()["webhook-signature"]
    assert check(headers(signature=f"v1a,AAAA v1,AAAA v1 nonsense {right}")) == "msg_1"


@pytest.mark.hostile(11)
@pytest.mark.parametrize(
    ("signature", "why"),
    [
        ("v1", "signature"),
        ("v1,", "signature"),
        ("v1,a,b", "signature"),
        ("v1,abc", "signature"),
        ("v1,\u00e9", "signature"),
        ("v1,\udcff", "signature"),
        ("  ", "signature"),
        (headers()["webhook-signature"].replace("v1,", "v1a,"), "signature"),
        (headers()["webhook-signature"].replace("v1,", "V1,"), "signature"),
        (headers()["webhook-signature"][:-2] + "A=", "signature"),
        (" ".join(["v1,AAAA"] * 500), "malformed"),
        (" ".join(["v1,AAAA"] * 16 + [headers()["webhook-signature"]]), "malformed"),
        ("x" * 1_000_000, "malformed"),
    ],
)
def test_nonsense_for_a_signature_is_rejected_and_nothing_else(signature: str, why: str) -> None:
    """No entry, however formed, raises anything but `Rejected`."""
    assert reason(headers(signature=signature)) == why


@pytest.mark.hostile(10)
@pytest.mark.parametrize(
    "timestamp",
    [".9", "1.0", "-1", "+1", " 1", "1 ", "nan", "inf", "1e9", "1_0", "0x1", "9" * 13, "1" * 40,
     "\u0661\u0662", "1\n"],
)  # fmt: skip
def test_only_plain_digits_are_a_time(timestamp: str) -> None:
    """What `float` and `int` would take is no timestamp, even when it is rightly signed."""
    assert reason(signed_headers(SECRET, "msg_1", timestamp, BODY)) == "malformed"  # type: ignore[arg-type]


@pytest.mark.hostile(7)
@pytest.mark.parametrize("name", ["id", "timestamp", "signature"])
def test_a_missing_or_empty_header_is_rejected(name: str) -> None:
    """A header sent twice looks like a missing one, too."""
    assert reason(headers(**{name: ""})) == "missing"


@pytest.mark.parametrize("webhook_id", ["x" * 257, "caf\u00e9", "a\nb", "\udcff"])
def test_an_id_that_cannot_be_shown_is_rejected(webhook_id: str) -> None:
    """Ids end up in a log and in a file."""
    assert reason(headers(id=webhook_id)) == "malformed"


@pytest.mark.hostile(10)
@pytest.mark.parametrize(
    ("offset", "why"), [(-300, ""), (300, ""), (-301, "too old"), (301, "too new"), (-STAMP, "too old")]
)
def test_the_time_must_be_near_and_is_judged_last(offset: int, why: str) -> None:
    """A rightly signed request of another time can be told from an unsigned one."""
    made = signed_headers(SECRET, "msg_1", STAMP + offset, BODY)
    if not why:
        assert check(made) == "msg_1"
        return
    with pytest.raises(Rejected) as caught:
        check(made)
    assert caught.value.reason == why
    assert caught.value.is_signed


@given(
    st.dictionaries(st.sampled_from(["webhook-id", "webhook-timestamp", "webhook-signature"]), st.text()),
    st.binary(),
)
def test_no_input_raises_anything_but_rejected(given_headers: dict[str, str], body: bytes) -> None:
    """Whatever a stranger sends, the answer is 401."""
    with pytest.raises(Rejected):
        verify(given_headers, body, [SECRET], now=NOW)


def cache(path: Path | None = None, *, capacity: int = 10_000, at: datetime = NOW) -> ReplayCache:
    """Return a cache that starts at `at`."""
    return ReplayCache(path, now=at, capacity=capacity, keep_seconds=600)


def novelty(kept: ReplayCache, webhook_id: str, body: bytes = b"x", *, after: float = 0.0) -> str:
    """Ask about a request signed and received `after` seconds from NOW."""
    at = NOW + timedelta(seconds=after)
    return kept.novelty(webhook_id, body, signed_at=at, now=at)


def test_a_request_is_new_until_it_is_remembered() -> None:
    """Asking alone changes nothing, so that a failed attempt can be repeated."""
    kept = cache()
    assert [novelty(kept, "a"), novelty(kept, "a")] == ["new", "new"]
    kept.remember("a", b"x", now=NOW)
    assert novelty(kept, "a") == "duplicate"
    assert novelty(kept, "a", b"y") == "reused"
    assert novelty(kept, "b") == "new"


@pytest.mark.hostile(14)
def test_a_replay_after_a_restart_is_known(tmp_path: Path) -> None:
    """The memory is on disk, readable by us alone."""
    path = tmp_path / "replay.json"
    kept = cache(path)
    kept.remember("a", b"x", now=NOW)
    assert kept.save()
    assert path.stat().st_mode & 0o777 == 0o600
    assert novelty(cache(path), "a") == "duplicate"
    assert novelty(cache(path), "a", b"y") == "reused"


@pytest.mark.hostile(15)
def test_a_full_cache_refuses_and_only_the_expired_make_room() -> None:
    """Forgetting a live id would let it be replayed."""
    kept = cache(capacity=2)
    kept.remember("a", b"x", now=NOW)
    kept.remember("b", b"x", now=NOW + timedelta(seconds=100))
    assert novelty(kept, "c", after=101) == "full"
    assert novelty(kept, "a", after=101) == "duplicate"
    assert novelty(kept, "c", after=601) == "new"
    assert novelty(kept, "b", after=601) == "duplicate"
    assert len(kept) == 1


def test_a_memory_that_forgets_lets_the_oldest_go() -> None:
    """What may be repeated without harm never keeps anything new out."""
    kept = ReplayCache(None, now=NOW, capacity=2, keep_seconds=600, forgets=True)
    for name in ("a", "b", "a", "c"):
        kept.remember(name, b"x", now=NOW)
    assert novelty(kept, "d") == "new"
    assert [novelty(kept, name) for name in ("a", "b", "c")] == ["duplicate", "new", "duplicate"]
    assert len(kept) == 2


def test_a_clock_set_back_does_not_keep_the_expired() -> None:
    """Entries in another order than that of their ends make room all the same."""
    kept = cache(capacity=2)
    kept.remember("late", b"x", now=NOW + timedelta(seconds=1000))
    kept.remember("early", b"x", now=NOW)
    assert novelty(kept, "c", after=601) == "new"
    assert novelty(kept, "late", after=601) == "duplicate"


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b"[" * 100_000, b'{"version": 2, "kept": {}}', b'{"version": 1}',
     b'{"version": 1, "kept": {"a": 1}}', b'{"version": 1, "kept": {"a": [1]}}', b"\xff\xfe",
     b'{"version": 1, "kept": []}'],
)  # fmt: skip
def test_after_an_unreadable_file_only_what_is_signed_later_is_new(tmp_path: Path, content: bytes) -> None:
    """What may be a replay is refused, what cannot be one is taken, and the file is made good."""
    path = tmp_path / "replay.json"
    path.write_bytes(content)
    kept = cache(path)
    assert "unreadable" in kept.problem
    assert novelty(kept, "a") == "unknown"
    assert novelty(kept, "a", after=1) == "new"
    kept.remember("a", b"x", now=NOW)
    assert kept.save()
    assert set(json.loads(path.read_bytes())) == {"version", "kept"}
    assert novelty(cache(path), "b") == "new"


def test_a_file_that_cannot_be_written_is_told_and_retried(tmp_path: Path) -> None:
    """The memory still holds, and the next save brings everything."""
    path = tmp_path / "gone" / "replay.json"
    kept = cache(path)
    kept.remember("a", b"x", now=NOW)
    assert not kept.save()
    assert "cannot write" in kept.problem
    assert novelty(kept, "a") == "duplicate"
    path.parent.mkdir()
    assert kept.save()
    assert kept.problem == ""
    assert novelty(cache(path), "a") == "duplicate"


def test_ten_thousand_ids_fit_and_come_back(tmp_path: Path) -> None:
    """The whole memory survives a restart within its size limit."""
    path = tmp_path / "replay.json"
    kept = cache(path)
    for number in range(10_000):
        kept.remember(f"msg_{number}", b"x", now=NOW)
    assert novelty(kept, "one more") == "full"
    assert kept.save()
    again = cache(path)
    assert len(again) == 10_000
    assert novelty(again, "msg_9999") == "duplicate"
