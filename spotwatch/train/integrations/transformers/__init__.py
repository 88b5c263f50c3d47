# SPDX-License-Identifier: Apache-2.0
"""One callback for transformers' Trainer, and for those made of it (TRL, ms-swift)."""

from spotwatch.train.integrations.transformers.callback import SpotwatchCallback

__all__ = ["SpotwatchCallback"]
