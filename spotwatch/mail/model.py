# SPDX-License-Identifier: Apache-2.0
"""What is known of one mail at each stage: as delivered, read, proven, understood and judged.

Plain values: nothing here parses, asks or decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Literal

from spotwatch.model import Evidence

MAX_MAIL_BYTES = 256 * 1024
"""Read of a mail at most; SES hands over 150 KB by SNS (docs.aws.amazon.com, SES SNS action, Nov 2026)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One mail as a service handed it over, after that service's own authentication passed."""

    service: str
    """Name of the module in `spotwatch.mail.inbound`."""
    raw: bytes
    """The mail, RFC 5322. Composed of the parsed fields where the service has nothing else."""
    is_original: bool
    """Whether `raw` is what the service received, byte for byte: only then can DKIM hold."""
    covers_body: bool
    """Whether the service's signature covers the mail; else it proves only that the service was asked."""
    replay_id: str
    """What the service's signature may be used for once: a token, an id, a digest of the signature."""
    signed_at: datetime | None
    """When the service signed, aware UTC; None: it does not say."""
    received_at: datetime
    """When it arrived here, aware UTC."""
    doubts: tuple[str, ...] = ()
    """What the service itself found wrong (`dkimVerdict: FAIL`); any makes the mail weak."""
    is_clock_set: bool = True
    """Whether our clock may be relied on; else a time that does not fit may be right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mail:
    """One mail as read, every part within its limit; nothing in it is proven yet."""

    raw: bytes = field(repr=False)
    """With CRLF line ends, as DKIM signs it."""
    header_counts: Mapping[str, int] = field(repr=False)
    """How often each header is there, by lower-case name."""
    subject: str
    sender: str
    """The one address in From, lower case; empty unless there is exactly one."""
    recipients: tuple[str, ...]
    """The addresses in To, lower case."""
    date: datetime | None
    """Of the Date header, aware UTC; None: missing, unreadable, or without a zone."""
    message_id: str
    """Without blanks; empty: missing or unreadable."""
    digest: str
    """SHA-256 of subject, date and visible text, hexadecimal: what a mail without Message-ID is known by."""
    text: str = field(repr=False)
    """What a person sees of the mail's own words, normalised: NFKC, one blank, one line a line."""
    quoted: str = field(repr=False)
    """What a person sees of quoted and forwarded mail in it, normalised likewise."""
    is_automatic: bool
    """An automatic answer or a delivery report."""
    is_forwarded: bool
    """Passed on by a person: `Fwd:`, "Begin forwarded message", an attached mail, an Outlook header table."""
    problems: tuple[str, ...] = ()
    """What could not be read or was cut off; each makes the mail weak."""


class Proven(StrEnum):
    """Whether a signature by a trusted domain holds."""

    YES = "proven"
    NO = "unproven"
    UNKNOWN = "unknown"
    """DNS did not answer, or nobody knows what time it is: ask again later, and flush meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What DKIM says of a mail."""

    result: Proven
    domain: str = ""
    """The trusted domain whose signature holds."""
    signed_headers: frozenset[str] = frozenset()
    """Lower-case names that this signature covers."""
    findings: tuple[str, ...] = ()
    """For people, a line a signature or broken rule; what is foreign in them is escaped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Droplet:
    """A Droplet that a mail may be about."""

    droplet_id: int
    names: frozenset[str] = frozenset()
    """Names that are its alone, by configuration or by the account's own list; case-folded."""
    hostname: str = ""
    """What its metadata calls it; another Droplet may be called the same."""
    addresses: frozenset[str] = frozenset()
    """Its IP addresses, as `ipaddress` writes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mention:
    """A Droplet that a mail names."""

    droplet: Droplet
    by: Literal["id", "address", "name", "hostname"]
    """Number and own name may be strong; anybody can find out an address, or use the same host name."""
    is_told: bool = True
    """Whether it is the one that the mail says is reclaimed; False: it is only named."""
    at: datetime | None = None
    """When it goes, by a row of its own, aware UTC; None: when the mail says, `Reading.at`."""


class MailClass(StrEnum):
    """What kind of mail it is."""

    RECLAIM = "reclaim"
    CANCEL = "cancel"
    CORRECTION = "correction"
    UNCLEAR = "unclear"
    """It speaks of a reclaim and of its end, quotes one, or names ours in words that no pattern knows.

    It flushes, and is kept for inspection.
    """
    OTHER_NOTICE = "other_notice"
    """DigitalOcean's, about something else: maintenance, an invoice, an alert, a newsletter."""
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a mail says, as far as it can be understood."""

    mail_class: MailClass
    class_why: str
    """The pattern that decided, for people."""
    is_in_subject: bool = True
    """Whether the Subject speaks of a reclaim too, or of Spot Droplets."""
    mentions: tuple[Mention, ...] = ()
    """Those of the Droplets asked about that it names, each once, by its strongest mark."""
    names_others: bool = False
    """It names Droplets, and none of those asked about."""
    at: datetime | None = None
    """When the Droplet goes, aware UTC; None for a cancel."""
    is_at_stated: bool = False
    """Whether the mail says `at` itself; else it is the signed date plus two hours less a margin."""
    at_why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What follows from a mail for one Droplet, or for none."""

    event: Literal["reclaim", "cancel", "correction", "none"]
    """`none`: nothing follows. A weak `reclaim` is a flush."""
    evidence: Evidence
    result: Literal["accepted", "not_mine", "ignored", "unproven"]
    """The metric label."""
    droplet: Droplet | None
    """None: all that hear of it, because the mail names none."""
    at: datetime | None
    signed_at: datetime
    """The mail's own date, or when it came where it has none."""
    message_key: str
    """What the mail is known by: its Message-ID, else its digest; of a proven one what is signed."""
    is_temporary: bool = False
    """A proof could not be had now: act weakly, answer 503, expect it again."""
    is_kept: bool = False
    """To be kept for inspection: it concerns this Droplet and was not fully understood."""
    detail: str = ""
    """One line for notice, log and announcement."""
    lines: tuple[str, ...] = ()
    """`spotwatch mail test`: what was recognised, each proof, what follows and why."""
