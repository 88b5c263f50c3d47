# SPDX-License-Identifier: Apache-2.0
"""What a mail says: its class, the Droplets that it names, and when they go.

It does not ask who wrote it, and decides nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime

from spotwatch.mail.classifying import Around, classify, read_words
from spotwatch.mail.droplets import Named, find, has_name_like
from spotwatch.mail.model import Droplet, Mail, MailClass, Reading
from spotwatch.mail.patterns import Patterns
from spotwatch.mail.times import when

_ALL_OF_THEM = re.compile(r"\b(?:all(?! other)|following|below|listed|these|those|affected)\b", re.IGNORECASE)
_WITH_TIME = frozenset({MailClass.RECLAIM, MailClass.CORRECTION, MailClass.UNCLEAR})


def understand(
    mail: Mail, *, droplets: Sequence[Droplet], patterns: Patterns, received_at: datetime
) -> Reading:
    """Return what a mail says of Droplets.

    Whom and when are taken from the mail's own words; from quoted ones only where the own name nobody.

    Args:
        mail: as read, every part within its limit.
        droplets: those that it may be about.
        patterns: what words mean.
        received_at: aware.
    """
    words = read_words(mail, patterns)
    own = find(words.own_text, droplets, common_words=patterns.common_words)
    quoted = find(words.quoted_text, droplets, common_words=patterns.common_words)
    stated = when(
        words.own_text,
        signed_at=mail.date,
        received_at=received_at,
        is_correction=MailClass.CORRECTION in words.own,
    )
    mentions = own.mentions or (() if own.others else quoted.mentions)
    names_others = not mentions and (own.others or (quoted.others and not words.speaks))
    mail_class, why = classify(
        words,
        Around(
            names_ours=bool(own.mentions),
            quotes_ours=bool(quoted.mentions),
            names_others=names_others,
            is_taken_back_for_all=_is_for_all(words.taking_back, own, patterns.common_words),
            states_time=stated.is_stated,
            states_far=stated.is_far,
        ),
    )
    if not own.mentions and not own.others and not stated.is_stated and mail_class is MailClass.UNCLEAR:
        stated = when(words.quoted_text, signed_at=mail.date, received_at=received_at)
    has_time = mail_class in _WITH_TIME
    return Reading(
        mail_class=mail_class,
        class_why=why,
        is_in_subject=words.is_in_subject,
        mentions=mentions,
        names_others=names_others,
        at=stated.at if has_time else None,
        is_at_stated=has_time and stated.is_stated,
        at_why=stated.why if has_time else "",
    )


def _is_for_all(statements: Sequence[str], named: Named, common_words: AbstractSet[str]) -> bool:
    """Tell whether `statements` are about all Droplets that their mail names, not some of them, or others."""
    said = "\n".join(statements)
    if _ALL_OF_THEM.search(said):
        return True
    ours = [mention.droplet for mention in named.mentions]
    if ours and len(find(said, ours, common_words=common_words).mentions) == len(ours):
        return True
    return len(ours) + named.others <= 1 and not has_name_like(said, common_words=common_words)
