# SPDX-License-Identifier: Apache-2.0
"""The whole reclaim, rehearsed: an emulated cloud, a real daemon, a real trainer, a replacement, a verdict.

It prints no verdict and reads no command line; `spotwatch drill` does. Importing it does not import torch.
"""

from spotwatch.drill.plan import FLUSHING, Plan, interval_seconds, make_plan
from spotwatch.drill.session import Drill, run_drill
from spotwatch.drill.timeline import Timeline
from spotwatch.drill.verdict import Outcome, cloud_document, document, problems

__all__ = [
    "FLUSHING",
    "Drill",
    "Outcome",
    "Plan",
    "Timeline",
    "cloud_document",
    "document",
    "interval_seconds",
    "make_plan",
    "problems",
    "run_drill",
]
