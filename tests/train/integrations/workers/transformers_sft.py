# SPDX-License-Identifier: Apache-2.0
"""TRL's trainers, small, one of each way to gather what is logged; the tokenizer is from nothing."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer
from trl.experimental.cpo import CPOConfig, CPOTrainer
from trl.experimental.online_dpo import OnlineDPOConfig, OnlineDPOTrainer

from tests.train.integrations.workers.transformers_world import Noting, rows


class Noted(Noting, SFTTrainer):
    """TRL's trainer, which notes what it does."""


def make_sft(model: Any, given: dict[str, Any], callbacks: list[Any], *, lora: bool = False) -> Any:
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
    moved = {"sync_ref_model": True, "ref_model_sync_steps": 2, "ref_model_mixup_alpha": 0.5}
    return NotedPairs(
        model,
        args=DPOConfig(**given, **moved, bf16=False, max_length=16, gradient_checkpointing=False),
        ref_model=deepcopy(model),
        train_dataset=Dataset.from_list(_pairs()),
        processing_class=_tokenizer(),
        callbacks=callbacks,
    )


class NotedContrast(Noting, CPOTrainer):
    """TRL's trainer of preferences without a reference, which notes what it does."""


def make_cpo(model: Any, given: dict[str, Any], callbacks: list[Any]) -> Any:
    """Make it."""
    return NotedContrast(
        model,
        args=CPOConfig(**given, bf16=False, max_length=16, gradient_checkpointing=False),
        train_dataset=Dataset.from_list(_pairs()),
        eval_dataset=Dataset.from_list(_pairs()[:4]),
        processing_class=_tokenizer(),
        callbacks=callbacks,
    )


class NotedOnline(Noting, OnlineDPOTrainer):
    """TRL's trainer of what the model itself writes, which notes what it does; it has a step of its own."""

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Take it."""
        loss = super().training_step(*args, **kwargs)
        self.noted("train", loss, "")
        return loss


def make_online(model: Any, given: dict[str, Any], callbacks: list[Any]) -> Any:
    """Make it, with rewards by the length of what is written."""
    return NotedOnline(
        model,
        reward_funcs=lambda completions, **its: [float(len(text) % 7) for text in completions],
        args=OnlineDPOConfig(
            **given, bf16=False, max_length=16, max_new_tokens=4, gradient_checkpointing=False
        ),
        train_dataset=Dataset.from_list([{"prompt": pair["prompt"]} for pair in _pairs()]),
        processing_class=_tokenizer("left"),
        callbacks=callbacks,
    )


KINDS: dict[str, Callable[..., Any]] = {
    "sft": make_sft,
    "lora": partial(make_sft, lora=True),
    "dpo": make_dpo,
    "cpo": make_cpo,
    "online": make_online,
}


def _pairs() -> list[dict[str, str]]:
    text = [" ".join(f"w{n}" for n in row["input_ids"]) for row in rows(22)]
    return [{"prompt": one[:8], "chosen": one[8:14], "rejected": one[14:20]} for one in text]


def _tokenizer(side: str = "right") -> PreTrainedTokenizerFast:
    words = {f"w{n}": n for n in range(30)} | {"<pad>": 30, "<eos>": 31}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", padding_side=side
    )
