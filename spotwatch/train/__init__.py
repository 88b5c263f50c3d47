# SPDX-License-Identifier: Apache-2.0
"""The trainer's side: save, tell, resume. Imports nothing of the daemon."""

from spotwatch.train.checkpointer import Checkpointer
from spotwatch.train.digest import digest
from spotwatch.train.done.done_list import DoneList
from spotwatch.train.loaders import ResumableLoader
from spotwatch.train.shield import worker_init

__all__ = ["Checkpointer", "DoneList", "ResumableLoader", "digest", "worker_init"]
