# SPDX-License-Identifier: Apache-2.0
"""A log line is one line, says nothing secret, obeys nobody, and never stops the daemon.

Which events are logged is tested where they happen.
"""

from __future__ import annotations

import io
import json
import logging
import math
import os
import subprocess
import sys
from typing import Any

import pytest

from spotwatch.logs import LogOnChange, get_logger, set_up_logging
from spotwatch.masking import escape, is_secret_name


@pytest.fixture
def lines() -> io.StringIO:
    """Log as JSON into memory."""
    stream = io.StringIO()
    set_up_logging(format="json", level="info", stream=stream)
    return stream


def rows(stream: io.StringIO) -> list[dict[str, Any]]:
    """Return the logged lines."""
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_has_event_level_time_and_fields(lines: io.StringIO) -> None:
    """What is bound and what is given are both there; what is below the level is not."""
    log = get_logger(provider="aws")
    log.debug("unseen")
    log.info("poll failed", times=3, share=math.nan, ok=False, deadline=None)
    (row,) = rows(lines)
    assert row.pop("at").endswith("Z")
    assert (row.pop("event"), row.pop("level")) == ("poll failed", "info")
    assert row == {"provider": "aws", "times": 3, "share": "nan", "ok": False, "deadline": None}


@pytest.mark.hostile(56)
def test_foreign_text_is_escaped_and_capped(lines: io.StringIO) -> None:
    """No text can end its line, move the cursor, turn the reading direction or go on for ever."""
    get_logger().warning(
        "bad\nbody", body="\x1b[2Jx\u202etxt\ud800" + "a" * 500, items=["\r", {"k\n": "\x00"}]
    )
    (row,) = rows(lines)
    assert row["event"] == "bad\\nbody"
    assert row["body"].startswith("\\x1b[2Jx\\u202etxt\\ud800aaa")
    assert row["body"].endswith("… (+310 characters)")
    assert row["items"] == ["\\r", {"k\\n": "\\x00"}]
    assert len(lines.getvalue()) < 600


def test_secrets_are_masked_by_name(lines: io.StringIO) -> None:
    """Values under a secret's name are not written, at any depth."""
    get_logger().info(
        "x", token="s3cret", headers={"Authorization": "s3cret", "X-Api-Key": "s3cret", "A": "b"}
    )
    assert "s3cret" not in lines.getvalue()
    assert rows(lines)[0]["headers"] == {"Authorization": "***", "X-Api-Key": "***", "A": "b"}


def test_names_of_secrets() -> None:
    """A file name and a duration are no secrets."""
    assert all(map(is_secret_name, ("secret", "webhook.secret", "X-Api-Key", "aws_session_token", "Cookie")))
    assert not any(map(is_secret_name, ("secret_files", "secret_file", "token_ttl_seconds", "keys_", "why")))


def test_escape_keeps_what_people_read() -> None:
    """Letters of every script stay."""
    assert escape("naïve 日本語 🙂 \\") == "naïve 日本語 🙂 \\"
    assert escape("a\tb\u2028c\u200b") == "a\\tb\\u2028c\\u200b"


def test_exception_is_kept_whole(lines: io.StringIO) -> None:
    """A traceback is longer than other values, and still one line of JSON."""
    try:
        raise RuntimeError("boom \x1b[31m")
    except RuntimeError:
        get_logger().exception("failed")
    (row,) = rows(lines)
    assert "Traceback (most recent call last)" in row["exception"]
    assert "boom \\x1b[31m" in row["exception"]


def test_value_that_cannot_be_shown_is_named(lines: io.StringIO) -> None:
    """A foreign object whose text fails costs nothing."""

    class Broken:
        def __str__(self) -> str:
            raise RuntimeError("no")

    deep: list[Any] = []
    deep.append(deep)
    get_logger().info("x", broken=Broken(), deep=deep)
    assert rows(lines)[0]["broken"] == "<Broken>"


def test_standard_library_goes_the_same_way(lines: io.StringIO) -> None:
    """Records of asyncio and aiohttp are cleaned too; their info is dropped."""
    logging.getLogger("asyncio").error("Task %s\n", "x")
    logging.getLogger("aiohttp.access").info("GET /")
    (row,) = rows(lines)
    assert (row["event"], row["level"], row["logger"]) == ("Task x\\n", "error", "asyncio")


def test_setting_up_twice_logs_once(lines: io.StringIO) -> None:
    """A second set-up replaces the first."""
    again = io.StringIO()
    set_up_logging(format="json", stream=again)
    logging.getLogger("x").error("once")
    assert len(rows(again)) == 1
    assert lines.getvalue() == ""


@pytest.mark.hostile(56)
def test_console_is_readable_and_escaped(lines: io.StringIO) -> None:
    """For people: event and fields on one line, without colours in a pipe."""
    out = io.StringIO()
    set_up_logging(format="console", stream=out)
    get_logger().info("order given", why="a\x1b[2Jb")
    text = out.getvalue()
    assert "order given" in text
    assert "\x1b" not in text
    assert len(text.splitlines()) == 1


def test_log_that_cannot_be_written_stops_nothing(lines: io.StringIO) -> None:
    """A reader that went away is survived, as is a closed file."""
    read, write = os.pipe()
    os.close(read)
    broken = os.fdopen(write, "w", encoding="utf-8")
    set_up_logging(format="json", stream=broken)
    get_logger().info("still alive")
    with pytest.raises(BrokenPipeError):
        broken.close()
    get_logger().info("still alive")


def test_only_changes_are_logged(lines: io.StringIO) -> None:
    """Sixty failures are one line, and the recovery says how many there were."""
    changes = LogOnChange(get_logger())
    said = [changes.say(("aws", "spot"), "unavailable", "signal", level="warning") for _ in range(60)]
    assert said == [True] + [False] * 59
    assert changes.say(("aws", "spot"), "ok", "signal")
    assert changes.say(("aws", "asg"), "ok", "signal")
    changes.forget(("aws", "asg"))
    assert changes.say(("aws", "asg"), "ok", "signal")
    assert [(r["level"], r["state"], r.get("before"), r.get("after_times")) for r in rows(lines)] == [
        ("warning", "unavailable", None, None),
        ("info", "ok", "unavailable", 60),
        ("info", "ok", None, None),
        ("info", "ok", None, None),
    ]


def test_rich_is_not_loaded() -> None:
    """An installed rich stays out of the daemon's memory, and remains importable for others."""
    script = (
        "import sys, spotwatch.logs as l; l.set_up_logging(format='console'); l.get_logger().info('x')\n"
        "try: raise ValueError('y')\nexcept ValueError: l.get_logger().exception('z')\n"
        "print([m for m in sys.modules if m.split('.')[0] == 'rich'])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    assert "ValueError: y" in done.stderr
