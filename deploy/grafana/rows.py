# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: INP001 - beside the script that uses it, not in the package
"""The panels about reclaims and work: what each one asks, and how it is to be read.

Every selector holds the variables job and instance, and drops what is unknown (NaN) before it adds up. What
a panel looks like is in `panels.py`, the rows about the daemon in `rows_daemon.py`.
"""

from __future__ import annotations

from typing import Any

from panels import BLUE, GREEN, GREY, ORANGE, RED, YELLOW, Query, Text, bars, lines, number, states

CHOSEN = 'job=~"$job",instance=~"$instance"'
PROVIDER = f'{CHOSEN},provider=~"$provider"'
BY_MACHINE = "by (job, instance)"
# `@ end()`: the same machines at every step, or a row would begin only with its notice.
HAD_NOTICE = (
    f"and on (job, instance) max {BY_MACHINE} "
    f"(max_over_time(spotwatch_notice_active{{{CHOSEN}}}[$__range] @ end())) > 0"
)

CASE_STATES = {
    0: ("no notice", GREY),
    1: ("noticed", YELLOW),
    2: ("flush: told to save and go on", ORANGE),
    3: ("flushed: saved, goes on", BLUE),
    4: ("stop: told to save and exit", RED),
    5: ("stopped: saved", GREEN),
}
TRAINER_STATES = {
    0: ("nobody reports", GREY),
    1: ("resuming", "light-blue"),
    2: ("waiting", "light-purple"),
    3: ("training", BLUE),
    4: ("seen the order", YELLOW),
    5: ("staged", ORANGE),
    6: ("uploading", "dark-orange"),
    7: ("durable", GREEN),
    8: ("failed", RED),
    9: ("finished", "dark-green"),
}


def _states(metric: str, label: str, named: dict[int, tuple[str, str]]) -> str:
    """Return an expression that is the number of the furthest state that holds, or 0."""
    words = [name.split(":")[0].split(" ")[0] for name, _ in list(named.values())[1:]]
    words = [{"noticed": "seen", "flush": "flushing", "stop": "stopping"}.get(word, word) for word in words]
    terms = [
        f'{value} * clamp_max({metric}{{{CHOSEN},{label}="{word}"}}, 1)'
        for value, word in zip(list(named)[1:], words, strict=True)
    ]
    return f"max {BY_MACHINE} ({' or '.join(terms)}) {HAD_NOTICE}"


def now() -> list[Any]:
    """Return the row of numbers: how it stands."""
    deadline = f"spotwatch_notice_deadline_timestamp_seconds{{{CHOSEN}}}"
    blind = f'spotwatch_provider_up{{{PROVIDER},provider!="file"}}'
    missed = f'spotwatch_cases_total{{{CHOSEN},outcome="missed"}}'
    unanswered = f'spotwatch_open_cases{{{CHOSEN},phase=~"flushing|stopping"}}'
    return [
        number(
            Text(title="Machines", about="Daemons that answered the last scrape.", nothing="none"),
            f"count(spotwatch_build_info{{{CHOSEN}}})",
            "none",
            base=BLUE,
        ),
        number(
            Text(
                title="Notices in force",
                about="All kinds, all machines. Not a fault: spotwatch acts on them.",
                nothing="none",
            ),
            f"sum(spotwatch_notice_active{{{PROVIDER}}})",
            "none",
            limits=[(1, YELLOW)],
        ),
        number(
            Text(
                title="Not saved yet",
                about="Notices whose order the trainer has not answered yet.",
                nothing="none",
            ),
            f"sum({unanswered})",
            "none",
            limits=[(1, ORANGE)],
        ),
        number(
            Text(
                title="Next deadline",
                about="Time to the earliest deadline of all. Below zero the machine may be gone any moment.",
                nothing="no deadline",
            ),
            f"min(({deadline} > 0) - time())",
            "s",
            base=RED,
            limits=[(30, ORANGE), (120, YELLOW)],
        ),
        number(
            Text(
                title="Most work at risk",
                about="Training time that would be lost if the worst placed machine "
                "vanished now. The limits are one and two of the longest intervals between saves.",
                nothing="no trainer reports",
            ),
            f"max(spotwatch_work_at_risk_seconds{{{CHOSEN}}} >= 0)",
            "s",
            limits=[(1800, YELLOW), (3600, RED)],
        ),
        number(
            Text(
                title="Trainers reporting",
                about="Machines on which a trainer reported within 15 s.",
                nothing="none",
            ),
            f"sum(spotwatch_trainer_up{{{CHOSEN}}})",
            "none",
            base=BLUE,
        ),
        number(
            Text(
                title="Blind",
                about="Providers that gave no good answer when last asked: their notices would not be seen.",
                nothing="0",
            ),
            f"count({blind} == 0) or 0 * count({blind})",
            "none",
            limits=[(1, RED)],
        ),
        number(
            Text(
                title="Missed", about="Deadlines that passed without a save, in the time shown.", nothing="0"
            ),
            f"sum(increase({missed}[$__range]))",
            "none",
            limits=[(0.5, RED)],
        ),
    ]


def reclaims() -> list[Any]:
    """Return the row about reclaims: from the notice to the last save."""
    outcome = f"spotwatch_cases_total{{{CHOSEN}}}"
    waits = [
        Query(f"histogram_quantile({q}, sum by (le) (increase({name}_bucket{{{CHOSEN}}}[$__range])))", legend)
        for q, name, legend in (
            (0.5, "spotwatch_notice_to_order_seconds", "notice to order, half"),
            (0.99, "spotwatch_notice_to_order_seconds", "notice to order, 99 %"),
            (0.5, "spotwatch_notice_to_saved_seconds", "notice to saved, half"),
            (0.99, "spotwatch_notice_to_saved_seconds", "notice to saved, 99 %"),
        )
    ]
    return [
        states(
            Text(
                title="What spotwatch has ordered",
                about="A row for each machine that had a notice in the time shown: noticed, told to save, "
                "saved. Red that reaches the deadline is a save that came too late.",
                nothing="No notice in this time.",
            ),
            Query(_states("spotwatch_open_cases", "phase", CASE_STATES)),
            CASE_STATES,
            height=5,
        ),
        states(
            Text(
                title="What the trainer does",
                about="The same machines: what their trainer says of itself. After `durable` the checkpoint "
                "was read back; then it exits. A silent one keeps its last word.",
                nothing="No notice in this time.",
            ),
            Query(_states("spotwatch_trainer_phase", "phase", TRAINER_STATES)),
            TRAINER_STATES,
            height=5,
        ),
        lines(
            Text(
                title="Time left, and time a save takes",
                about="To the earliest deadline of each machine. The "
                "stop goes out at one and a half saves and 15 s before it.",
                nothing="No deadline.",
            ),
            [
                Query(
                    f"(spotwatch_notice_deadline_timestamp_seconds{{{CHOSEN}}} > 0) - time() > -600",
                    "{{instance}} left",
                ),
                Query(f"spotwatch_save_estimate_seconds{{{CHOSEN}}} {HAD_NOTICE}", "{{instance}} a save"),
            ],
            "s",
            limits=[(30, ORANGE)],
        ),
        bars(
            Text(
                title="Notice to order, notice to saved",
                about="Of the notices in the time shown: half of them, "
                "and 99 % of them, were quicker than this. Read off buckets, so rounded up.",
                nothing="No notice in this time.",
            ),
            waits,
            "s",
            decimals=2,
        ),
        bars(
            Text(
                title="How cases came out",
                about="Counted in the time shown. `durable`: the save was read back; "
                "`acknowledged`: a script removed the flag; `missed`: the deadline passed first.",
                nothing="No case in this time.",
            ),
            [Query(f"sum by (outcome) (increase({outcome}[$__range]))", "{{outcome}}")],
            "none",
        ),
    ]


def work() -> list[Any]:
    """Return the row about training and its saves."""
    m = f"{{{CHOSEN}}}"
    return [
        lines(
            Text(
                title="Work at risk",
                about="Training time since the last durable save, a line for each machine. "
                "A saw: the teeth are the saves. The limits are one and two of the longest intervals.",
                nothing="No trainer reports.",
            ),
            [Query(f"spotwatch_work_at_risk_seconds{m} >= 0")],
            "s",
            limits=[(1800, YELLOW), (3600, RED)],
        ),
        lines(
            Text(
                title="Age of the last save",
                about="Since the newest checkpoint became durable.",
                nothing="Nothing was saved yet.",
            ),
            [Query(f"time() - spotwatch_checkpoint_last_saved_timestamp_seconds{m} >= 0")],
            "s",
            limits=[(3600, YELLOW)],
        ),
        lines(
            Text(
                title="Step, and step saved",
                about="The distance of the two lines is what a loss costs.",
                nothing="No trainer reports.",
            ),
            [
                Query(f"spotwatch_trainer_step{m} >= 0", "{{instance}} at"),
                Query(f"spotwatch_checkpoint_step{m} >= 0", "{{instance}} saved"),
            ],
            "none",
        ),
        lines(
            Text(
                title="Steps a second",
                about="As the trainer measures it. A dip at each save is the stall.",
                nothing="No trainer reports.",
            ),
            [Query(f"spotwatch_trainer_steps_per_second{m} >= 0")],
            "none",
        ),
        lines(
            Text(
                title="Save: until durable, and planned",
                about="How long the last save took, from its beginning "
                "to the checkpoint read back, and what the plan counts with.",
                nothing="Nothing was saved yet.",
            ),
            [
                Query(f"spotwatch_checkpoint_save_seconds{m} >= 0", "{{instance}} took"),
                Query(f"spotwatch_save_estimate_seconds{m} >= 0", "{{instance}} planned"),
            ],
            "s",
            limits=[(60, YELLOW), (120, RED)],
        ),
        lines(
            Text(
                title="Save: training held up",
                about="How long the loop stood still for the last save.",
                nothing="Nothing was saved yet.",
            ),
            [Query(f"spotwatch_checkpoint_stall_seconds{m} >= 0")],
            "s",
            limits=[(10, YELLOW)],
        ),
        lines(
            Text(
                title="Size of a checkpoint",
                about="Of all files of the last one.",
                nothing="Nothing was saved yet.",
            ),
            [Query(f"spotwatch_checkpoint_size_bytes{m} >= 0")],
            "bytes",
        ),
        lines(
            Text(
                title="Saves that failed",
                about="By reason: stage is memory, upload and store the store or the "
                "way to it, verify bytes that came back otherwise.",
                nothing="0",
            ),
            [
                Query(
                    f"sum by (reason) (increase(spotwatch_checkpoint_failures_total{m}[$__rate_interval]))",
                    "{{reason}}",
                )
            ],
            "none",
            limits=[(1, RED)],
        ),
        lines(
            Text(
                title="Orders",
                about="What trainers were told; `none` lifts what was ordered before.",
                nothing="0",
            ),
            [Query(f"sum by (do) (increase(spotwatch_orders_total{m}[$__rate_interval]))", "{{do}}")],
            "none",
        ),
    ]
