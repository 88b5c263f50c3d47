# SPDX-License-Identifier: Apache-2.0
"""TRL's SFTTrainer, small, with or without an adapter, and its DPOTrainer; the tokenizer is from nothing."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

from tests.train.integrations.workers.transformers_world import Noting, rows


class Noted(Noting, SFTTrainer):
    """TRL's trainer, which notes what it does."""


def make_sft(model: Any, given: dict[str, Any], callbacks: list[Any], *, lora: bool) -> Any:
    """Make it."""
    text = [{"text": " ".join(f"w{n}" for n in row["input_ids"])} for row in rows(22)]
    return Noted(
        model,
        SFTConfig(**given, bf16=False, max_length=16),
        train_dataset=Dataset.from_list(text),
        eval_dataset=Dataset.from_list(text[:6]),
        processing_class=_tokenizer(),
        peft_config=LoraConfig(r=2, target_modules=["c_attn"], lora_dropout=0.1, fan_in_fan_out=True)
        if lora
        else None,
        callbacks=callbacks,
    )


class NotedPairs(Noting, DPOTrainer):
    """TRL's trainer of preferences, which notes what it does."""


def make_dpo(model: Any, given: dict[str, Any], callbacks: list[Any]) -> Any:
    """Make it with a reference model that follows the trained one."""
    text = [" ".join(f"w{n}" for n in row["input_ids"]) for row in rows(22)]
    pairs = [{"prompt": one[:8], "chosen": one[8:14], "rejected": one[14:20]} for one in text]
    moved = {"sync_ref_model": True, "ref_model_sync_steps": 2, "ref_model_mixup_alpha": 0.5}
    return NotedPairs(
        model,
        args=DPOConfig(**given, **moved, bf16=False, max_length=16, gradient_checkpointing=False),
        ref_model=deepcopy(model),
        train_dataset=Dataset.from_list(pairs),
        processing_class=_tokenizer(),
        callbacks=callbacks,
    )


def _tokenizer() -> PreTrainedTokenizerFast:
    words = {f"w{n}": n for n in range(30)} | {"<pad>": 30, "<eos>": 31}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")
