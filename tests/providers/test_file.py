# SPDX-License-Identifier: Apache-2.0
"""What files in `notices/` say, whole, half-written, hostile and a stranger's; and a known end.

It does not test who writes them.
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from spotwatch.errors import ConfigError, Denied, Malformed, Unavailable
from spotwatch.model import Certainty, Do, Kind
from spotwatch.providers import Context
from spotwatch.providers._folder import is_trusted_owner
from spotwatch.providers.file import Config, File, parse
from spotwatch.testing import EPOCH, FakeClock, run_virtual
from tests.providers.notice_files import make, only, put

IS_ROOT = os.geteuid() == 0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return an empty directory of notices."""
    made = tmp_path / "notices"
    made.mkdir(mode=0o750)
    return made


def test_a_stop_is_a_reclaim_with_an_exact_time(tmp_path: Path, folder: Path) -> None:
    """A stop by hand is the most certain notice there is."""
    put(folder, "now.json", do="stop", deadline="2026-11-29T15:00:00+01:00", why="moving out")
    answer = make(tmp_path)[1]()
    notice = only(answer)
    assert notice.id == "file:now"
    assert (notice.kind, notice.do, notice.certainty) == (Kind.RECLAIM, Do.STOP, Certainty.EXACT)
    assert notice.deadline == datetime(2026, 11, 29, 14, tzinfo=UTC)
    assert (notice.ends_machine, notice.detail, notice.seen_at) == (True, "moving out", EPOCH)
    assert answer.answered == {"notices", "notice_files"}
    assert not answer.failed


def test_a_flush_ends_nothing(tmp_path: Path, folder: Path) -> None:
    """A flush by hand asks for a save and no more."""
    put(folder, "save.json", do="flush")
    notice = only(make(tmp_path)[1]())
    assert (notice.kind, notice.do, notice.ends_machine) == (Kind.AT_RISK, Do.FLUSH, False)
    assert notice.deadline is None


def test_a_file_gone_is_a_notice_gone(tmp_path: Path, folder: Path) -> None:
    """An answered signal without the notice withdraws it."""
    _, ask = make(tmp_path)
    path = put(folder, "now.json", do="stop")
    assert len(ask().notices) == 1
    path.unlink()
    answer = ask()
    assert answer.notices == ()
    assert "notices" in answer.answered


def test_no_directory_is_no_notice(tmp_path: Path) -> None:
    """Where nobody has written, nobody has asked."""
    answer = make(tmp_path)[1]()
    assert answer.notices == ()
    assert answer.answered == {"notices", "notice_files"}


BAD = {
    "empty": b"",
    "half": b'{"do": "st',
    "deep": b"[" * 15_000,
    "long int": b'{"do": "stop", "x": ' + b"1" * 6000 + b"}",
    "list": b'["do"]',
    "string": b'"stop"',
    "null": b"null",
    "nan": b'{"do": "stop", "deadline": NaN}',
    "twice": b'{"do": "flush", "do": "stop"}',
    "utf-16": '{"do": "stop"}'.encode("utf-16"),
    "latin": b'{"do": "stop", "why": "\xe9"}',
    "surrogate": b'{"do": "stop", "why": "\\ud800"}',
    "infinite": b'{"do": "stop", "x": 1e999}',
    "unknown do": b'{"do": "exit"}',
    "no do": b"{}",
    "do is a list": b'{"do": ["stop"]}',
    "naive": b'{"do": "stop", "deadline": "2026-11-29T15:00:00"}',
    "no time": b'{"do": "stop", "deadline": "soon"}',
    "a number": b'{"do": "stop", "deadline": 1764428400}',
    "end of time": b'{"do": "stop", "deadline": "9999-12-31T23:59:59-23:59"}',
    "why is no text": b'{"do": "stop", "why": 7}',
    "too long": b'{"do": "stop", "why": "' + b"x" * 20_000 + b'"}',
}


@pytest.mark.parametrize("body", BAD.values(), ids=BAD.keys())
def test_a_bad_file_is_told_and_stops_nobody(tmp_path: Path, folder: Path, body: bytes) -> None:
    """It is counted, names itself and a mend, and the good file beside it still counts."""
    _, ask = make(tmp_path)
    assert ask().notices == ()
    put(folder, "good.json", do="flush")
    (folder / "bad.json").write_bytes(body)
    answer = ask()
    assert only(answer).id == "file:good"
    assert answer.answered == {"notices"}
    error = answer.failed["notice_files"]
    assert isinstance(error, Malformed)
    assert "bad.json" in str(error)
    assert error.mend


def test_a_half_written_file_is_read_when_it_is_whole(tmp_path: Path, folder: Path) -> None:
    """The next poll after the writer has finished sees the notice."""
    _, ask = make(tmp_path)
    path = folder / "now.json"
    path.write_text('{"do": "st', encoding="utf-8")
    assert ask().notices == ()
    path.write_text('{"do": "stop"}', encoding="utf-8")
    answer = ask()
    assert only(answer).do is Do.STOP
    assert not answer.failed


def test_a_notice_survives_its_file_being_rewritten(tmp_path: Path, folder: Path) -> None:
    """Between two halves of a rewrite the last whole content stays in force."""
    _, ask = make(tmp_path)
    path = put(folder, "now.json", do="stop", why="first")
    assert only(ask()).detail == "first"
    path.write_text("", encoding="utf-8")
    assert only(ask()).detail == "first"
    put(folder, "now.json", do="stop", why="second")
    assert only(ask()).detail == "second"


def test_nothing_is_withdrawn_for_a_file_unreadable_since_the_start(tmp_path: Path, folder: Path) -> None:
    """It may hold the notice of an earlier life of the daemon; once it is gone, it is withdrawn."""
    _, ask = make(tmp_path)
    path = folder / "now.json"
    path.write_text("", encoding="utf-8")
    answer = ask()
    assert set(answer.failed) == {"notices", "notice_files"}
    assert answer.answered == frozenset()
    path.unlink()
    assert ask().answered == {"notices", "notice_files"}


def test_links_directories_and_pipes_are_refused(tmp_path: Path, folder: Path) -> None:
    """Only regular files count, and a pipe does not hang the poll."""
    _, ask = make(tmp_path)
    ask()
    outside = tmp_path / "outside.json"
    outside.write_text('{"do": "stop"}', encoding="utf-8")
    (folder / "link.json").symlink_to(outside)
    (folder / "dir.json").mkdir()
    os.mkfifo(folder / "pipe.json")
    answer = ask()
    assert answer.notices == ()
    assert isinstance(answer.failed["notice_files"], Malformed)


def test_other_names_are_not_looked_at(tmp_path: Path, folder: Path) -> None:
    """Temporary files of a writer are no notices."""
    put(folder, ".now.json.123", do="stop")
    put(folder, ".now.json", do="stop")
    put(folder, "now.json.tmp", do="stop")
    answer = make(tmp_path)[1]()
    assert (answer.notices, dict(answer.failed)) == ((), {})


def test_a_world_writable_directory_is_refused_loudly(tmp_path: Path, folder: Path) -> None:
    """Anyone could stop the trainer there; the mend is the command."""
    put(folder, "now.json", do="stop")
    folder.chmod(0o777)
    answer = make(tmp_path)[1]()
    error = answer.failed["notices"]
    assert answer.notices == ()
    assert isinstance(error, Denied)
    assert error.mend == f"chmod o-w {folder}"


def test_a_directory_that_is_a_link_is_refused(tmp_path: Path) -> None:
    """Someone else's directory is not read through a link."""
    real = tmp_path / "real"
    real.mkdir()
    put(real, "now.json", do="stop")
    (tmp_path / "notices").symlink_to(real)
    answer = make(tmp_path)[1]()
    assert answer.notices == ()
    assert isinstance(answer.failed["notices"], Denied)


def test_a_directory_of_a_stranger_is_refused(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner could write anything there."""
    if IS_ROOT:
        os.chown(folder, 54321, 54321)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 54321)
    put(folder, "now.json", do="stop")
    assert isinstance(make(tmp_path)[1]().failed["notices"], Denied)


@pytest.mark.skipif(not IS_ROOT, reason="giving a file away needs root")
def test_a_file_of_a_stranger_is_refused_loudly(tmp_path: Path, folder: Path) -> None:
    """It got there by a rename or a hard link, and its content is not its mover's."""
    path = put(folder, "now.json", do="stop")
    os.chown(path, 54321, 54321)
    answer = make(tmp_path)[1]()
    assert answer.notices == ()
    error = answer.failed["notice_files"]
    assert isinstance(error, Denied)
    assert "54321" in str(error)


def test_root_we_and_the_group_are_trusted() -> None:
    """Everyone else, known to the system or not, is a stranger."""
    assert is_trusted_owner(0, 54321)
    assert is_trusted_owner(os.geteuid(), 54321)
    assert not is_trusted_owner(54321, 54321)
    assert is_trusted_owner(1, 1)
    assert not is_trusted_owner(1, 54321)


@pytest.mark.skipif(IS_ROOT, reason="no directory is closed to root: run it as an ordinary user")
def test_an_unlistable_directory_withdraws_nothing(tmp_path: Path, folder: Path) -> None:
    """Not being allowed to look is not the same as seeing nothing."""
    folder.chmod(0o000)
    try:
        answer = make(tmp_path)[1]()
    finally:
        folder.chmod(0o750)
    assert isinstance(answer.failed["notices"], Unavailable)
    assert answer.answered == frozenset()


def test_a_directory_refused_and_mended_is_read_again(tmp_path: Path, folder: Path) -> None:
    """Mending needs no restart."""
    _, ask = make(tmp_path)
    put(folder, "now.json", do="stop")
    folder.chmod(0o777)
    assert ask().notices == ()
    folder.chmod(0o750)
    assert len(ask().notices) == 1


def test_every_bad_file_is_named(tmp_path: Path, folder: Path) -> None:
    """Whoever mends the first finds the others in the same line, and the good ones count meanwhile."""
    put(folder, "good.json", do="stop")
    for number in range(30):
        (folder / f"{number:02}.json").write_bytes(b"{")
    provider, ask = make(tmp_path)
    answer = ask()
    assert len(answer.notices) == 1
    problem = answer.failed["notice_files"]
    assert isinstance(problem, Malformed)
    assert problem.body == b"{"
    text = str(problem)
    assert text.startswith("00.json: ")
    assert "; and 29 more: 01.json, 02.json, " in text
    assert text.endswith("20.json, ...")
    for number in range(1, 30):
        (folder / f"{number:02}.json").unlink()
    assert "more" not in str(run_virtual(provider.notices()).failed["notice_files"])


def test_too_many_files_are_told(tmp_path: Path, folder: Path) -> None:
    """The number of notices is bounded, and the rest is not silently dropped."""
    for number in range(257):
        put(folder, f"{number:03}.json", do="flush")
    answer = make(tmp_path)[1]()
    assert len(answer.notices) == 256
    assert "257 files" in str(answer.failed["notice_files"])


def test_names_and_reasons_cannot_steer_a_terminal(folder: Path) -> None:
    """Escapes, line breaks and bidirectional marks are shown as text, and length is bounded."""
    body = json.dumps({"do": "stop", "why": "a\n\x1b[2J\u202eb" + "c" * 500}).encode()
    notice = parse(body, name="x\n\udcff", seen_at=EPOCH)
    assert notice.id == "file:x\\n\\udcff"
    assert notice.detail.startswith("a\\n\\x1b[2J\\u202eb")
    assert len(notice.detail) == 200


def test_unknown_keys_and_a_byte_order_mark_are_forgiven() -> None:
    """A notice by hand is not missed for a little too much in it."""
    body = b'\xef\xbb\xbf{"do": "stop", "deadline": null, "ticket": 7}'
    assert parse(body, name="x", seen_at=EPOCH).do is Do.STOP


def test_a_known_end_is_a_notice_without_a_file(tmp_path: Path) -> None:
    """`policy.ends_at` needs no cloud signal."""
    provider, ask = make(tmp_path, "2026-11-30T12:00:00Z")
    answer = ask()
    notice = only(answer)
    assert notice.id == "ends_at:2026-11-30T12:00:00.000Z"
    assert (notice.signal, notice.kind, notice.certainty) == ("ends_at", Kind.RECLAIM, Certainty.EXACT)
    assert notice.deadline == EPOCH + timedelta(days=1)
    assert answer.server_at == EPOCH
    assert provider.signals == ("notices", "notice_files", "ends_at")
    assert "ends_at" in answer.answered


def test_a_known_end_counts_although_the_directory_is_refused(tmp_path: Path, folder: Path) -> None:
    """The failure of one signal says nothing about another."""
    folder.chmod(0o777)
    assert only(make(tmp_path, "2026-11-30T12:00:00Z")[1]()).signal == "ends_at"


def test_an_end_that_is_no_time_is_refused_at_start(tmp_path: Path) -> None:
    """The message names the key and the value."""
    with pytest.raises(ConfigError, match=r"policy\.ends_at = 'tomorrow'"):
        make(tmp_path, "tomorrow")


@pytest.mark.parametrize("seconds", [0, -1, 61])
def test_an_interval_that_cannot_work_is_refused(seconds: float) -> None:
    """The message says what to use."""
    with pytest.raises(ValueError, match="interval_seconds"):
        Config(interval_seconds=seconds)


def test_files_are_no_cloud_and_are_looked_at_every_half_second(tmp_path: Path) -> None:
    """`auto` never finds `file`; it is always watched anyway."""
    provider, _ = make(tmp_path)
    clock = FakeClock()

    async def use() -> tuple[bool, float]:
        async with File(Config(), Context(clock=clock, runtime_dir=tmp_path)) as opened:
            await opened.wait()
            return await opened.detect(), clock.monotonic()

    assert run_virtual(use()) == (False, 0.5)
    assert provider.interval_seconds == 0.5
