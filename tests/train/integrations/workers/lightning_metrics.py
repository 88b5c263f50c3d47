# SPDX-License-Identifier: Apache-2.0
"""Metrics of Lightning's lives that hold more than their states: numbers, tensors, and other metrics."""

from __future__ import annotations

from typing import Any

import torch
from torchmetrics import MeanMetric
from torchmetrics.aggregation import RunningMean
from torchmetrics.wrappers import MetricTracker, MinMaxMetric


class More(torch.nn.Module):
    """A window, the least and the most, and one metric an epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.window = RunningMean(window=3)
        self.range = MinMaxMetric(MeanMetric())
        self.epochs = MetricTracker(MeanMetric(), maximize=False)

    def begin_epoch(self) -> None:
        """Begin the next one."""
        self.epochs.increment()

    def take(self, loss: Any) -> None:
        """Update them all."""
        for metric in (self.window, self.range, self.epochs):
            metric(loss)

    def values(self) -> list[str]:
        """Return what they compute, to the last bit."""
        least, most = (self.range.compute()[name] for name in ("min", "max"))
        return [float(one).hex() for one in (self.window.compute(), least, most, *self.epochs.compute_all())]
