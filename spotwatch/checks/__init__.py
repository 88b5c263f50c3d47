# SPDX-License-Identifier: Apache-2.0
"""Is it working? One line for each question: what was found, and how to mend what is wrong.

One file for each group of questions, `frame` asks them all, `finding` is an answer. Whatever is asked, the
machine stays as it was: no order, no flag under its real name, no journal row. How the answers are shown is
the command line's business.
"""

from spotwatch.checks.daemons import ask_last_words
from spotwatch.checks.finding import Finding, Result, document, has_failed, is_partial
from spotwatch.checks.frame import refused, run_checks
from spotwatch.checks.standpoint import revise, take_standpoint

__all__ = [
    "Finding",
    "Result",
    "ask_last_words",
    "document",
    "has_failed",
    "is_partial",
    "refused",
    "revise",
    "run_checks",
    "take_standpoint",
]
