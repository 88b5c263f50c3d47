# SPDX-License-Identifier: Apache-2.0
"""Which Droplets a text names: by number, address or whole name; and whether it names others.

It does not know what the text says of them.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice
from typing import Literal, NamedTuple

from spotwatch.mail.model import Droplet, Mention
from spotwatch.mail.normalising import normalise

By = Literal["id", "address", "name", "hostname"]

_STRENGTH: tuple[By, ...] = ("id", "name", "address", "hostname")
# Numbers of Droplets have had seven digits since 2014; a shorter one is read only after the word Droplet.
_MIN_BARE_DIGITS = 7
_DOTS = 3

# A name is a whole run of what names are made of (DigitalOcean API v2, droplets: "name"), and of `_`. The
# full stop of a sentence is not part of it; the address of a mailbox is no name.
_TOKEN = re.compile(r"(?<![\w.@/-])[\w.-]*\w(?![\w-]|\.\w|\.*@)")
_NUMBER = re.compile(r"(?<![\w.+-])[0-9]{1,16}(?![\w-]|\.\w|,[0-9])")
_ADDRESS = re.compile(r"(?<![\w.:-])\[?([0-9A-Fa-f:.]{2,45}+(?:/[0-9]{1,3})?)(?![\w-])")

# What stands before a number and makes it another kind of number. `#` alone is a ticket's sign.
_DROPLET_BEFORE = re.compile(
    r"(?:\bdroplets?(?:\W{1,3}(?:id|number|no))?|\bdroplet_id|/droplets/)[\W_]{0,4}$", re.IGNORECASE
)
_ID_BEFORE = re.compile(r"\bid\W{1,4}$", re.IGNORECASE)
_OTHER_NUMBER_BEFORE = re.compile(
    r"(?:\+[0-9][0-9 ().-]{0,20}|[$€£¥]\s?"
    r"|\b(?:tickets?|cases?|invoices?|orders?|references?|ref|requests?|phone|tel|telephone|fax|call|mobile|account"
    r"|customer|transaction|payment|receipt|image|snapshot|volume|project|team|user|amount|total)"
    r"(?:\s(?:id|no|number|nr))?[\s:#.=(]{0,4})$",
    re.IGNORECASE,
)
_IN_ADDRESS = re.compile(r"https?://\S*$|[?&]\w+=$")
_REACH = 40

# Marks of Droplets, whosever they are.
_ID_MARK = re.compile(
    r"(?:/droplets/|\bdroplet(?:\s|_|-)?id\W{1,3}|\bdroplets?\W{1,3}(?:id\W{1,3})?)([0-9]{6,16})(?![\w-]|\.\w)",
    re.IGNORECASE,
)
_NAME_MARK = re.compile(
    r"\bdroplet(?:\s(?:named|called|name(?:\sis)?))?\s?[:\s]\s?[\"'`\u201c\u2018(]?(\w[\w.-]{1,252})",
    re.IGNORECASE,
)
_LIST_HEAD = re.compile(
    r".{0,200}\b(?:affected|following|impacted|these|listed)\b.{0,60}\b(?:droplets?|resources?|instances?)\b[^:\n]{0,60}:(.*)$",
    re.IGNORECASE,
)
_ITEM = re.compile(
    r"[^\w/]{0,6}(\w[\w.-]{0,252})[\"'`\u201d\u2019*]{0,2}\s?(?:[(\[|\u2013\u2014-].*|:\s?[0-9.]+|\s[0-9.]+)?"
)
_NAME_LIKE = re.compile(r"[a-z].*[0-9.-]|[0-9.-].*[a-z]", re.IGNORECASE)
# What looks like a name and is none: sizes, regions, products, days.
_NO_NAME = re.compile(
    r"(?:[0-9]{4}-[0-9]{2}-[0-9]{2}|[0-9]+(?:x|-)?(?:gb|tb|gpu|vcpu|h|min|day)|v[0-9.]+$"
    r"|gpu-|[scgm][a-z0-9]{0,8}-[0-9]+vcpu|(?:8x)?[a-z]{1,4}[0-9]{2,4}[a-z]?(?:$|-[0-9]|x[0-9])|[a-z]{3}[0-9]$).*",
    re.IGNORECASE,
)
# With a hyphen and a digit, and no span of time: `spot-other-02`, not `40-minute`.
_LIKE_A_NAME = re.compile(r"(?=.*[0-9])[a-z][\w.]*(?:-[\w.]+)+", re.IGNORECASE)
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_MAX_NAMED = 2000
_MAX_LINE = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """Whom a text names."""

    mentions: tuple[Mention, ...]
    """Each Droplet once, by its strongest mark, in the order asked."""
    others: bool
    """It names other Droplets, by marks of a kind that those asked about have too."""


def find(text: str, droplets: Sequence[Droplet], *, common_words: AbstractSet[str]) -> Named:
    """Return which of `droplets` the text names.

    An id counts as a whole number: not within another, nor after a sign of a telephone, a ticket, an invoice
    or money; `#512345678` only after the word Droplet or id. A name counts as a whole token in any case of
    letters. A name that is a common word, or has no letter, is no mark at all.

    Args:
        text: normalised.
        droplets: those that it may be about.
        common_words: case-folded.
    """
    text = _plain(text)
    if not text.strip():
        return Named(mentions=(), others=False)
    marks: dict[By, AbstractSet[object]] = {
        "id": frozenset(_numbers(text, frozenset(droplet.droplet_id for droplet in droplets))),
        "address": frozenset(_addresses(text)),
        "name": frozenset(match.group().casefold() for match in _TOKEN.finditer(text)),
    }
    mentions = []
    for droplet in droplets:
        own = _marks_of(droplet, common_words)
        by = next(
            (kind for kind in _STRENGTH if own[kind] & marks["name" if kind == "hostname" else kind]), None
        )
        if by is not None:
            mentions.append(Mention(droplet=droplet, by=by))
    return Named(
        mentions=tuple(mentions),
        others=bool(droplets) and _names_others(text, droplets, common_words),
    )


class Who(NamedTuple):
    """Whom a statement or a row names."""

    ours: frozenset[int]
    """The numbers of those asked about."""
    others: bool
    """It names another Droplet, or something that is called like one."""


class Naming:
    """Tells whom pieces of a mail name; what is known of the Droplets is laid out once."""

    def __init__(self, droplets: Sequence[Droplet], *, common_words: AbstractSet[str]) -> None:
        self._droplets = droplets
        self._common_words = common_words
        self._wanted = frozenset(droplet.droplet_id for droplet in droplets)
        self._by_mark: dict[object, set[int]] = {}
        for droplet in droplets:
            for marks in _marks_of(droplet, common_words).values():
                for mark in marks:
                    self._by_mark.setdefault(mark, set()).add(droplet.droplet_id)
        self._names = {_folded(name) for d in droplets for name in (*d.names, d.hostname)}

    def of(self, text: str) -> Who:
        """Return whom `text` names."""
        text = _plain(text)
        names = [match.group().casefold() for match in _TOKEN.finditer(text)]
        marks = chain(_numbers(text, self._wanted), _addresses(text), names)
        ours = frozenset(chain.from_iterable(self._by_mark.get(mark, ()) for mark in marks))
        others = any(int(match[1]) not in self._wanted for match in _ID_MARK.finditer(text)) or any(
            name not in self._names and not _is_common(name, self._common_words)
            for name in chain(map(str.casefold, _named_ones(text)), filter(_LIKE_A_NAME.fullmatch, names))
            if not _NO_NAME.match(name)
        )
        return Who(ours, others)


def has_name_like(text: str, *, common_words: AbstractSet[str]) -> bool:
    """Tell whether something in `text` may be some Droplet's name: a token of letters and digits."""
    return any(
        re.search("[0-9]", name) and not _is_common(name, common_words) and not _DAY.match(name)
        for name in (match.group().casefold() for match in _TOKEN.finditer(text))
    )


def _plain(text: str) -> str:
    # NFKC turns a non-breaking hyphen into a hyphen that names are not written with.
    return text.replace("\u2010", "-").replace("\u2011", "-")


def _is_common(name: str, common_words: AbstractSet[str]) -> bool:
    return name in common_words or not any(c.isalpha() for c in name)


def _marks_of(droplet: Droplet, common_words: AbstractSet[str]) -> dict[By, AbstractSet[object]]:
    names = {_folded(name) for name in droplet.names}
    hostname = _folded(droplet.hostname)
    return {
        "id": {droplet.droplet_id},
        "address": {address for one in droplet.addresses if (address := _address(one)) is not None},
        "name": {name for name in names if name and not _is_common(name, common_words)},
        "hostname": {hostname}
        if hostname and not _is_common(hostname, common_words)
        else frozenset[object](),
    }


@lru_cache(maxsize=16384)
def _folded(name: str) -> str:
    return _plain(normalise(name)).casefold()


def _numbers(text: str, wanted: AbstractSet[int]) -> Iterator[int]:
    """Yield those of the wanted numbers that stand there as a Droplet's."""
    for match in _NUMBER.finditer(text):
        # First, because a text has room for 30,000 numbers, and what stands before each costs more.
        if int(match.group()) not in wanted:
            continue
        before = text[max(0, match.start() - _REACH) : match.start()]
        line = before.rpartition("\n")[2]
        is_bare = len(match.group()) >= _MIN_BARE_DIGITS and not line.rstrip().endswith("#")
        is_bare = is_bare and not _IN_ADDRESS.search(line)
        if _DROPLET_BEFORE.search(line) or (
            (is_bare or _ID_BEFORE.search(line)) and not _OTHER_NUMBER_BEFORE.search(line)
        ):
            yield int(match.group())


def _addresses(text: str) -> Iterator[str]:
    """Yield the addresses in the text, as `ipaddress` writes them."""
    for written in {match[1] for match in _ADDRESS.finditer(text)}:
        if written.count(":") > 1 or written.count(".") >= _DOTS:
            found = (
                _address(written) or _address(written.rstrip(".:")) or _address(written.rpartition(":")[0])
            )
            if found is not None:
                yield found


def _address(written: str) -> str | None:
    """Return one address; None: it is none, or a whole network such as `203.0.113.0/24`."""
    try:
        interface = ipaddress.ip_interface(written)
    except ValueError:
        return None
    network = interface.network
    if interface.ip == network.network_address and network.prefixlen < network.max_prefixlen:
        return None
    return str(getattr(interface.ip, "ipv4_mapped", None) or interface.ip)


def _names_others(text: str, droplets: Sequence[Droplet], common_words: AbstractSet[str]) -> bool:
    """Tell whether others are named, in a way in which those asked about would have been."""
    ids = {droplet.droplet_id for droplet in droplets}
    if any(int(match[1]) not in ids for match in _ID_MARK.finditer(text)):
        return True
    # A Droplet without a name that we know may be any of those named.
    if not all(_folded(d.hostname) or d.names for d in droplets):
        return False
    ours = {_folded(name) for d in droplets for name in (*d.names, d.hostname)}
    return any(
        name not in ours and not _is_common(name, common_words)
        for name in map(str.casefold, _named_ones(text))
    )


def _named_ones(text: str) -> Iterator[str]:
    """Yield what stands where a name does and looks like one: not `reason`, not `gpu-h100x1-80gb`."""
    marked = (match[1] for match in _NAME_MARK.finditer(text) if re.search("[0-9]", match[1]))
    for name in islice(chain(marked, _listed(text)), _MAX_NAMED):
        if _NAME_LIKE.search(name) and not _NO_NAME.match(name):
            yield name.rstrip(".-")


def _listed(text: str) -> Iterator[str]:
    """Yield the names beside or under `Affected Droplets:`, until a line that is no item."""
    is_in_list = False
    for line in text.split("\n"):
        head = _LIST_HEAD.match(line[:_MAX_LINE])
        if head is not None:
            is_in_list = True
            yield from _items(head[1])
        elif is_in_list and line.strip() and not line.startswith("http"):
            items = _items(line[:_MAX_LINE])
            is_in_list = bool(items)
            yield from items


def _items(line: str) -> list[str]:
    """Return the names in `spot-7 (203.0.113.9), spot-8`; none, when anything else stands there."""
    pieces = [_ITEM.fullmatch(piece) for piece in re.split(r"[,;]\s?|\sand\s", line) if piece.strip()]
    items = [piece[1] for piece in pieces if piece is not None]
    return items if len(items) == len(pieces) else []
