# SPDX-License-Identifier: Apache-2.0
"""`adapters` with each of peft's methods: what is saved, what comes back, which base is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from spotwatch.errors import StoreError

from .peft_help import Life, shake, tiny

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs transformers")
peft = pytest.importorskip("peft", reason="needs peft")
pytestmark = [
    pytest.mark.timeout(120),  # the libraries import much at their first use
    # What transformers and peft of these versions say of themselves.
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers"),
    pytest.mark.filterwarnings("ignore::UserWarning:peft"),
    pytest.mark.filterwarnings("ignore:.*deprecated.*:FutureWarning"),
]


def lora(**options: Any) -> Callable[[Any], Any]:
    """Return what puts LoRA on a base."""
    config = {"r": 4, "target_modules": ["q_proj", "v_proj"], **options}
    return lambda base: peft.get_peft_model(base, peft.LoraConfig(**config))


def method(name: str, **options: Any) -> Callable[[Any], Any]:
    """Return what puts adapters of another method on a base."""
    return lambda base: peft.get_peft_model(base, getattr(peft, name)(**options))


def two_adapters(base: Any) -> Any:
    """Return a model with two adapters, of which the first is active."""
    model = lora()(base)
    model.add_adapter("other", peft.LoraConfig(r=2, target_modules=["k_proj"]))
    return model


QV = {"target_modules": ["q_proj", "v_proj"]}
PROMPT = {"task_type": "CAUSAL_LM", "num_virtual_tokens": 3}
KINDS: dict[str, tuple[Callable[[Any], Any], int]] = {
    "lora": (lora(), 8),
    "dora": (lora(use_dora=True), 12),
    "rslora": (lora(use_rslora=True), 8),
    "embeddings": (lora(target_modules=["embed_tokens", "q_proj"]), 6),
    "modules_to_save": (lora(modules_to_save=["lm_head"]), 9),
    "trainable tokens": (lora(trainable_token_indices={"embed_tokens": [1, 2]}), 10),
    "pissa": (lora(init_lora_weights="pissa"), 8),
    "adalora": (method("AdaLoraConfig", total_step=20, **QV), 16),
    "ia3": (
        method("IA3Config", feedforward_modules=["down_proj"], target_modules=["k_proj", "down_proj"]),
        4,
    ),
    "vera": (method("VeraConfig", r=8, **QV), 10),
    "vera without projections": (method("VeraConfig", r=8, save_projection=False, **QV), 10),
    "vblora": (method("VBLoRAConfig", r=2, num_vectors=16, vector_length=8, **QV), 9),
    "loha": (method("LoHaConfig", r=2, **QV), 16),
    "oft": (method("OFTConfig", oft_block_size=4, **QV), 12),
    "prompt tuning": (method("PromptTuningConfig", **PROMPT), 1),
    "prefix tuning": (method("PrefixTuningConfig", **PROMPT), 1),
    "p-tuning": (method("PromptEncoderConfig", **PROMPT), 7),
    "two adapters": (two_adapters, 12),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_method_trains_comes_back_and_nothing_else_is_saved(kind: str) -> None:
    """On a base loaded anew, each tensor of the adapters has its bits back; another base is refused."""
    make, count = KINDS[kind]
    first, second = Life(make(tiny())), Life(make(tiny()))
    shake(first.model)
    shake(second.model)
    second.go_on_from(first)
    saved = first.names()
    there, here = first.model.state_dict(), second.model.state_dict()
    assert there.keys() == here.keys()
    assert all(torch.equal(tensor, here[name]) for name, tensor in there.items())
    assert not any("layernorm" in name or "mlp.gate" in name for name in saved)
    assert second.names() == saved
    with pytest.raises(StoreError, match="the base is not the one") as refused:
        Life(make(tiny(seed=1))).go_on_from(first)
    assert "'a base without a name'" in str(refused.value)
    assert len(saved) == count, sorted(saved)
