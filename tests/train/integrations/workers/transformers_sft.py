# SPDX-License-Identifier: Apache-2.0
"""TRL's SFTTrainer, small, with or without an adapter of PEFT's; its tokenizer is made from nothing."""

from __future__ import annotations

from typing import Any

from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

from tests.train.integrations.workers.transformers_world import Noting, rows


class Noted(Noting, SFTTrainer):
    """TRL's trainer, which notes what it does."""


def make_sft(model: Any, given: dict[str, Any], callbacks: list[Any], *, lora: bool) -> Any:
    """Make it."""
    words = {f"w{n}": n for n in range(30)} | {"<pad>": 30, "<eos>": 31}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    text = [{"text": " ".join(f"w{n}" for n in row["input_ids"])} for row in rows(22)]
    return Noted(
        model,
        SFTConfig(**given, bf16=False, max_length=16),
        train_dataset=Dataset.from_list(text),
        eval_dataset=Dataset.from_list(text[:6]),
        processing_class=PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>"
        ),
        peft_config=LoraConfig(r=2, target_modules=["c_attn"], lora_dropout=0.1, fan_in_fan_out=True)
        if lora
        else None,
        callbacks=callbacks,
    )
