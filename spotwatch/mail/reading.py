# SPDX-License-Identifier: Apache-2.0
"""From the bytes of a mail to what is said in it: limits first, then headers, then what a person sees.

Nothing is proven here and nothing understood. What cannot be read is left out and named in `problems`, which
makes the mail weak; only what is no mail at all, or has too many headers, is refused. It is pure, and its
cost is bounded whatever comes (`tests/mail/test_reading_costs.py`); run it in a thread all the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace

from spotwatch.errors import Malformed
from spotwatch.mail.addresses import read_mailbox, read_mailboxes
from spotwatch.mail.headers import (
    MAX_VALUE_BYTES,
    Headers,
    is_cut_as_words,
    read_date,
    read_headers,
    read_message_id,
    read_words,
)
from spotwatch.mail.html import MAX_MARKS, read_page
from spotwatch.mail.mime import Shown, read_body
from spotwatch.mail.model import MAX_MAIL_BYTES, Mail
from spotwatch.mail.normalising import MAX_CHARACTERS, normalise
from spotwatch.mail.quoting import is_answer, is_passed_on, mark_indented, split_quotes

MAX_HEADER_BYTES = 64 * 1024
MAX_HEADERS = 300

_OF_A_MAIL = frozenset({"from", "to", "subject", "date", "message-id", "mime-version", "received"})
_ONCE = (
    "from",
    "to",
    "subject",
    "date",
    "message-id",
    "content-type",
    "content-transfer-encoding",
    "mime-version",
)
_USED = ("from", "to", "subject", "date", "message-id")


def read_top(raw: bytes) -> Mail:
    """Return what the headers of a mail say, its body unread: `text`, `quoted` and `digest` are empty.

    It is what a signature can be checked with, at a fraction of the cost of `read_mail`.

    Raises:
        Malformed: as by `read_mail`.
    """
    return _top(raw)[0]


def read_mail(raw: bytes, *, is_form_signed: bool = False) -> Mail:
    r"""Return what is said in a mail, every part within its limit.

    `raw` comes back with CRLF line ends, as it was signed: storage and pipes make them LF, and some CR. A CR
    alone among other line ends was part of what was signed, so it stays; in a text it ends a line, in a
    header it is a problem. A `From ` line that a mailbox or a pipe put above the mail goes. What is beyond
    256 KiB is cut off, a problem too.

    Args:
        raw: from anywhere.
        is_form_signed: Content-Type and Content-Transfer-Encoding are the signer's own, so that the body is
            read as they say, and in no other way.

    Raises:
        Malformed: no mail, or headers over the limits (64 KiB, 300 of them).
    """
    top, headers, body = _top(raw)
    contents = read_body(headers, body, is_form_signed=is_form_signed)
    text, quoted, has_other_mail, text_problems = _words(contents.shown)
    return replace(
        top,
        digest=_digest(top.subject, headers.text("date"), text, quoted),
        text=text,
        quoted=quoted,
        is_automatic=contents.is_report or top.is_automatic,
        is_forwarded=top.is_forwarded
        or (contents.has_attached_mail and not contents.is_report)
        or (has_other_mail and not is_answer(top.subject)),
        problems=tuple(dict.fromkeys([*top.problems, *contents.problems, *text_problems])),
    )


def _top(raw: bytes) -> tuple[Mail, Headers, bytes]:
    """Return a mail as far as its headers say, the headers, and the body."""
    mail = _with_crlf(raw[:MAX_MAIL_BYTES])
    block, _, body = mail.partition(b"\r\n\r\n")
    if len(block) > MAX_HEADER_BYTES:
        raise Malformed(f"headers of {len(block)} bytes; at most {MAX_HEADER_BYTES} are read", body=raw)
    headers = read_headers(block)
    if len(headers.fields) > MAX_HEADERS:
        raise Malformed(f"{len(headers.fields)} headers; at most {MAX_HEADERS} are read", body=raw)
    if not _OF_A_MAIL & headers.counts.keys():
        raise Malformed(
            "no mail: it has none of From, To, Subject, Date, Message-ID, MIME-Version and Received", body=raw
        )
    problems = list(_header_problems(headers, block))
    if len(raw) > MAX_MAIL_BYTES:
        problems.append(f"of a mail of more than {MAX_MAIL_BYTES} bytes the rest is cut off")
    subject = " ".join(normalise(read_words(headers.text("subject"))).split())
    recipients, are_all_read = read_mailboxes(headers.text("to"))
    if not are_all_read:
        problems.append("To holds what is no plain address")
    top = Mail(
        raw=mail,
        header_counts=dict(headers.counts),
        subject=subject,
        sender=read_mailbox(headers.text("from")),
        recipients=recipients,
        date=read_date(headers.text("date")),
        message_id=read_message_id(headers.text("message-id")),
        digest="",
        text="",
        quoted="",
        is_automatic=_is_answer_by_machine(headers),
        is_forwarded=is_passed_on(subject),
        problems=tuple(dict.fromkeys(problems)),
    )
    return top, headers, body


def _with_crlf(raw: bytes) -> bytes:
    if b"\n" not in raw:
        mail = raw.replace(b"\r", b"\r\n")
    else:
        mail = raw.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
    mail = mail.lstrip(b"\r\n")
    if mail.startswith((b"From ", b">From ")):
        mail = mail.partition(b"\r\n")[2]
    return mail


def _header_problems(headers: Headers, block: bytes) -> Iterable[str]:
    for name in _ONCE:
        if headers.counts.get(name, 0) > 1:
            yield f"{headers.counts[name]} headers {name.title()}; one may be there"
    for name in _USED:
        if headers.is_too_long(name):
            yield f"{name.title()} of more than {MAX_VALUE_BYTES} bytes is not read"
    yield from _unreadable(headers)
    if headers.bad_lines:
        yield f"{headers.bad_lines} lines in the headers are none"
    if b"\r" in block.replace(b"\r\n", b""):
        yield "a carriage return in a header"


def _unreadable(headers: Headers) -> Iterable[str]:
    if not read_mailbox(headers.text("from")):
        yield "From holds not exactly one plain address"
    if is_cut_as_words(headers.text("subject")):
        yield "the subject is cut off"
    if headers.text("date") and read_date(headers.text("date")) is None:
        yield "Date is unreadable, or has no zone"
    if headers.text("message-id") and not read_message_id(headers.text("message-id")):
        yield "Message-ID is unreadable"


def _words(shown: Iterable[Shown]) -> tuple[str, str, bool, list[str]]:
    """Return the own and the quoted words, whether another mail is passed on in them, and problems."""
    own: list[str] = []
    quoted: list[str] = []
    has_other_mail, problems = False, []
    room, marks = MAX_CHARACTERS, MAX_MARKS
    for each in shown:
        page_text, is_cut = (
            read_page(each.text, max_marks=marks) if each.is_html else (mark_indented(each.text), False)
        )
        if each.is_html:
            marks -= min(marks, each.text.count("<") + each.text.count("="))
        text = normalise(page_text)
        if is_cut or len(page_text) > MAX_CHARACTERS or len(text) > room:
            problems.append(f"text beyond {MAX_CHARACTERS} characters is cut off")
        text = text[:room]
        room -= len(text)
        split = split_quotes(text)
        has_other_mail = has_other_mail or (split.is_passed_on and not each.is_attached)
        if each.is_attached:
            quoted += [split.own, split.quoted]
        else:
            own.append(split.own)
            quoted.append(split.quoted)
    return _joined(own), _joined(quoted), has_other_mail, problems


def _joined(texts: Iterable[str]) -> str:
    return "\n\n".join(text for text in texts if text)


def _is_answer_by_machine(headers: Headers) -> bool:
    """Tell a machine's answer or bounce from a notice that one wrote: both may be `auto-generated`."""
    sender = read_mailbox(headers.text("from"))
    return (
        headers.text("auto-submitted").lower().startswith("auto-replied")
        or any(headers.counts.get(name) for name in ("x-autoreply", "x-autorespond", "x-failed-recipients"))
        or headers.text("precedence").lower() == "auto_reply"
        or sender.partition("@")[0] in ("mailer-daemon", "postmaster")
    )


def _digest(subject: str, date: str, *texts: str) -> str:
    """Return what a mail is known by, however its lines were broken.

    Subject and Date are part of it: two notices that differ only there are two.
    """
    words = "\0".join(" ".join(part.split()) for part in (subject, date, *texts))
    return hashlib.sha256(words.encode()).hexdigest()
