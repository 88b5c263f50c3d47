# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: INP001 - a script, not a module
"""The rules as a PrometheusRule, for clusters where the Prometheus operator reads rules from such objects.

    python deploy/prometheus/prometheusrule.py > deploy/kubernetes/prometheusrule.yaml

It changes no rule: what Prometheus reads as a file stands, comments and all, below `spec`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from textwrap import indent

RULES = Path(__file__).parent / "spotwatch.rules.yml"
HEAD = """\
# SPDX-License-Identifier: Apache-2.0
# Made from deploy/prometheus/spotwatch.rules.yml by prometheusrule.py beside it; change the rules there.
# The operator reads it where its ruleSelector says so: many installations want a label `release` here.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: spotwatch
  labels:
    app.kubernetes.io/name: spotwatch
    app.kubernetes.io/component: monitoring
spec:
"""


def manifest(rules: str) -> str:
    """Return the manifest that holds the text of a rules file."""
    groups = rules[rules.index("\ngroups:\n") + 1 :]
    return HEAD + indent(groups, "  ")


if __name__ == "__main__":
    sys.stdout.write(manifest(RULES.read_text(encoding="utf-8")))
