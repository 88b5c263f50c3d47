# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: INP001 - beside the script that uses it, not in the package
"""The panels about what is heard, what was done and the daemon itself; the others are in `rows.py`."""

from __future__ import annotations

from typing import Any

from panels import GREEN, RED, YELLOW, Query, Text, bars, lines, states
from rows import CHOSEN, PROVIDER


def ears() -> list[Any]:
    """Return the row about what is heard of the clouds."""
    p = f"{{{PROVIDER}}}"
    polls = f"spotwatch_provider_polls_total{p}"
    seconds = "spotwatch_provider_poll_duration_seconds_bucket"
    return [
        states(
            Text(
                title="Providers",
                about="Whether every signal of the provider answered when last asked; one "
                "that stays red sees no notice.",
                nothing="No provider is watched.",
            ),
            Query(
                f"min by (instance, provider) (spotwatch_provider_up{p} >= 0)", "{{instance}} {{provider}}"
            ),
            {0: ("does not answer", RED), 1: ("answers", GREEN)},
            width=12,
            height=8,
        ),
        lines(
            Text(
                title="Polls by result",
                about="Questions asked a second. All but ok are failures, each with its reason.",
                nothing="No provider is asked.",
            ),
            [
                Query(
                    f"sum by (provider, result) (rate({polls}[$__rate_interval])) > 0",
                    "{{provider}} {{result}}",
                )
            ],
            "reqps",
            width=12,
            is_stacked=True,
        ),
        lines(
            Text(
                title="How long a poll takes",
                about="Half and 99 % were quicker. GCP's polls wait for a change, "
                "so they are long on purpose.",
                nothing="No provider is asked.",
            ),
            [
                Query(
                    f"histogram_quantile({q}, sum by (le, provider) (rate({seconds}{p}[$__rate_interval])))",
                    f"{{{{provider}}}} {name}",
                )
                for q, name in ((0.5, "half"), (0.99, "99 %"))
            ],
            "s",
            limits=[(1, YELLOW)],
        ),
        lines(
            Text(
                title="Since the last good answer",
                about="Of the provider that waits longest, over all machines. "
                "The alert comes at three minutes.",
                nothing="No provider has answered.",
            ),
            [
                Query(
                    f"max by (provider) (time() - spotwatch_provider_last_success_timestamp_seconds{p} >= 0)",
                    "{{provider}}",
                )
            ],
            "s",
            limits=[(180, RED)],
        ),
        bars(
            Text(
                title="Notices seen", about="New ones, by provider and kind, in the time shown.", nothing="0"
            ),
            [
                Query(
                    f"sum by (provider, kind) (increase(spotwatch_notices_total{p}[$__range])) > 0",
                    "{{provider}} {{kind}}",
                )
            ],
            "none",
        ),
        lines(
            Text(
                title="Webhook requests",
                about="By result, a second. `unsigned` that grows: a secret is wrong, or somebody tries.",
                nothing="No webhook is configured.",
            ),
            [
                Query(
                    f"sum by (result) (rate(spotwatch_webhook_requests_total{p}[$__rate_interval]))",
                    "{{result}}",
                )
            ],
            "reqps",
            is_stacked=True,
        ),
        lines(
            Text(
                title="Mailbox: the relay's last sign of life",
                about="Above ten minutes no mail would arrive.",
                nothing="No mailbox is read.",
            ),
            [Query(f"spotwatch_mailbox_heartbeat_age_seconds{{{CHOSEN}}}")],
            "s",
            limits=[(600, RED)],
        ),
        lines(
            Text(
                title="Clock",
                about="1: set right, as signed notices need it. Only where such are taken.",
                nothing="No signed notices are taken.",
            ),
            [Query(f"spotwatch_clock_synced{{{CHOSEN}}}")],
            "none",
            most=1,
        ),
    ]


def daemon() -> list[Any]:
    """Return the row about the daemon itself."""
    m = f"{{{CHOSEN}}}"
    slow = f"spotwatch_action_duration_seconds_bucket{m}"
    results = f"spotwatch_actions_total{m}"
    return [
        bars(
            Text(
                title="Actions",
                about="Carried out in the time shown. handshake and signal reach the trainer; "
                "hook and announce tell people.",
                nothing="Nothing was to be done in this time.",
            ),
            [Query(f"sum by (action, result) (increase({results}[$__range])) > 0", "{{action}} {{result}}")],
            "none",
        ),
        bars(
            Text(
                title="How long actions take",
                about="99 % were quicker, in the time shown.",
                nothing="Nothing was to be done in this time.",
            ),
            [
                Query(
                    f"histogram_quantile(0.99, sum by (le, action) (increase({slow}[$__range]))) >= 0",
                    "{{action}}",
                )
            ],
            "s",
            limits=[(1, YELLOW)],
            decimals=2,
        ),
        lines(
            Text(
                title="Journal rows not written in time",
                about="Orders go out all the same; a restart may then repeat or forget one.",
                nothing="0",
            ),
            [Query(f"sum by (instance) (increase(spotwatch_journal_errors_total{m}[$__rate_interval]))")],
            "none",
            limits=[(1, RED)],
        ),
        lines(
            Text(title="Memory", about="Resident, of the daemon's process.", nothing="unknown"),
            [Query(f"process_resident_memory_bytes{m}")],
            "bytes",
            limits=[(200e6, YELLOW)],
        ),
        lines(
            Text(title="CPU", about="Share of one core. Idle it is a third of a percent.", nothing="unknown"),
            [Query(f"rate(process_cpu_seconds_total{m}[$__rate_interval])")],
            "percentunit",
            limits=[(0.5, YELLOW)],
        ),
        lines(
            Text(
                title="Running since",
                about="Age of the daemon's process, and its version.",
                nothing="unknown",
            ),
            [
                Query(
                    f"(time() - process_start_time_seconds{m}) * on (job, instance) group_left (version) "
                    f"spotwatch_build_info{m}",
                    "{{instance}} {{version}}",
                )
            ],
            "s",
        ),
    ]
