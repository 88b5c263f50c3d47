# SPDX-License-Identifier: Apache-2.0
"""The words around a time that tell what it is the time of: the reclaim, an end, a bill, when it was written.

It reads no times.
"""

from __future__ import annotations

import re

# In the words before a time, the last ones deciding.
_LABEL = (
    r"\W{0,4}(?:(?:at|on|by|time|date|is|was|scheduled|estimated|expected)\W{1,4}|(?:time|date)\W{0,4}){0,3}$"
)
END = re.compile(
    r"\b(?:end|ends|ended|ending|until|till|through|up to|finish\w{0,5}|complet\w{0,5}|restor\w{0,6})"
    rf"{_LABEL}",
    re.IGNORECASE,
)
# Until when something is kept is nobody's end, however far it is.
KEPT = re.compile(rf"\b(?:until|till|through|up to|restor\w{{0,6}}){_LABEL}", re.IGNORECASE)
WRITTEN = re.compile(
    r"\b(?:sent|issued|received|created|generated|published|posted|launched|dated|last updated|requested"
    rf"|submitted|current|as of|(?:notice|notification|message|e?mail)\s(?:time|date|of|from|on)){_LABEL}",
    re.IGNORECASE,
)
NEW = re.compile(
    r"\b(?:to|now|new|correct|corrected|actual|revised|updated|but)[\s,:]{1,3}(?:\w{1,12}[\s,:]{1,3}){0,3}$",
    re.IGNORECASE,
)
OLD = re.compile(
    r"\b(?:instead of|rather than|previous(?:ly)?|original(?:ly)?|former(?:ly)?|earlier|incorrect(?:ly)?"
    r"|wrong(?:ly)?|erroneous(?:ly)?|mistaken(?:ly)?|from|was|were|not|old)[\s,:]{1,3}(?:\w{1,12}[\s,:]{1,3}){0,4}$",
    re.IGNORECASE,
)
MOVED_FROM = re.compile(
    r"\b(?:moved|changed|rescheduled|postponed|delayed|shifted|extended|advanced|brought forward|pushed back"
    r"|put back)[\s,:]{1,3}(?:\w{1,12}[\s,:]{1,3}){0,4}$",
    re.IGNORECASE,
)
# The end of the notice is the begin of what it announces.
PERIOD_ENDS = re.compile(
    rf"\b(?:notice|grace|warning)\s(?:period|window|time)\s(?:ends|ending|expires|is\sover|runs\sout|elapses){_LABEL}",
    re.IGNORECASE,
)
BEGINS = re.compile(rf"\b(?:start|starts|begins?|time|deadline)(?:\s\((?:UTC|GMT)\))?{_LABEL}", re.IGNORECASE)
# "Postponed until" names the new start.
PUT_OFF = re.compile(
    r"\b(?:delay|postpon|mov|reschedul|extend)(?:e|ed|ing)?\b.{0,60}\b(?:until|till)\W{1,3}$",
    re.IGNORECASE,
)
KEYWORD = re.compile(
    r"\b(?:start|begin|at|on|by|after|from|between|to|around|about|approximately|time|date|when|deadline|schedul"
    r"|reclaim|reclamation|interrupt|terminat|destroy|evict|preempt|shut|power|taken|take|remov|stop|end)",
    re.IGNORECASE,
)
DEED = re.compile(
    r"\b(?:reclaim|reclamation|interrupt|terminat|destroy|evict|preempt|shut|power|tak(?:e|en|ing)\sback|taken|remov"
    r"|withdraw|going away|go away|delet|stop)",
    re.IGNORECASE,
)
_OTHER_DEED = re.compile(
    r"\b(?:after|once|when|upon|following|within \S{1,12} \S{1,12} (?:of|after)) (?:it|they|the droplet"
    r"|your droplet|(?:the |acpi )?shut ?down|that|being|we"
    r"|(?:the |its )?(?:reclaim|reclamation|termination|interruption))\b"
    r"|\b(?:billing|billed|invoice|charged|price|pricing|reminder|remind|support|chat|call|office|snapshots?"
    r"|backups?|disks?|data is|data are|volumes?|new (?:spot )?droplets?|capacity check|status page|webinar"
    r"|extension|convert|create a|created|uptime|survey|maintenance|return)\b",
    re.IGNORECASE,
)


def is_of_another_deed(statement: str) -> bool:
    """Tell whether the times in a statement are those of another deed: of a bill, of what follows."""
    return _OTHER_DEED.search(statement) is not None
