# SPDX-License-Identifier: Apache-2.0
"""A Lightning run on two processes of which Lightning starts the second: `STORE TRACE [waits]`."""

from __future__ import annotations

import sys
import time
from typing import Any

import lightning as L  # noqa: N812 - as everybody calls it
import torch
from torch.utils.data import DataLoader, TensorDataset

from spotwatch.train import Checkpointer
from spotwatch.train.integrations.lightning import SpotwatchCallback
from tests.train.integrations.lives import note

STORE, TRACE, *MORE = sys.argv[1:]


class Model(L.LightningModule):
    """One layer, whose losses are noted."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Sequential(torch.nn.Linear(4, 1), torch.nn.Dropout(0.1))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Train, and at the fifth step wait to be told, if that was asked for."""
        if MORE and self.global_step == 4:
            note(TRACE, waits=True)
            until = time.monotonic() + 60
            while self.global_rank == 0 and not CK.poll() and time.monotonic() < until:
                time.sleep(0.01)
        loss = self.layer(batch[0]).square().mean()
        note(TRACE, rank=self.global_rank, step=self.global_step, loss=float(loss).hex())
        return loss

    def configure_optimizers(self) -> Any:
        """Return the optimizer."""
        return torch.optim.Adam(self.parameters(), lr=0.1)


L.seed_everything(1, verbose=False)
CK = Checkpointer(STORE, run_id="run", every_seconds=1000, patience_seconds=0.0)
L.Trainer(
    accelerator="cpu",
    devices=2,
    strategy="ddp",
    max_epochs=2,
    callbacks=[SpotwatchCallback(CK)],
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
).fit(Model(), DataLoader(TensorDataset(torch.arange(64.0).view(16, 4)), batch_size=2, shuffle=True))
