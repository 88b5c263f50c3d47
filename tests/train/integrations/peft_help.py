# SPDX-License-Identifier: Apache-2.0
"""A tiny base, and one checkpoint in memory: what the tests of `adapters` share."""

from __future__ import annotations

from typing import Any

from spotwatch.train.integrations.peft import Adapters, adapters
from spotwatch.train.state.state import State


def tiny(seed: int = 0) -> Any:
    """Return a base whose values are those of its seed."""
    import torch  # noqa: PLC0415 - the tests that need it ask for it first
    import transformers  # noqa: PLC0415 - likewise

    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=32,
    )
    return transformers.LlamaForCausalLM(config)


def halved(*, seed: int = 0, dtype: Any = None, width: int = 8, bias: bool = True) -> Any:
    """Return a model whose body is frozen, and whose head is trained."""
    import torch  # noqa: PLC0415 - as above

    torch.manual_seed(seed)
    body = torch.nn.Linear(4, width, bias=bias).requires_grad_(False)
    return torch.nn.Sequential(body.to(dtype), torch.nn.Linear(width, 2))


class Life:
    """One life of a run of which nothing is trained but a model: begun as `resume` begins one.

    Args:
        model: that is trained.
        options: for `adapters`.
    """

    def __init__(self, model: Any, **options: Any) -> None:
        self.adapters: Adapters = adapters(model, **options)
        self.state = State()
        self.state.track({"model": self.adapters})
        self.state.encode()

    @property
    def model(self) -> Any:
        """Return the model, unwrapped."""
        return self.adapters.model

    def names(self) -> set[str]:
        """Return the names of the tensors that a save takes now."""
        return set(self.adapters.state_dict()["tensors"])

    def go_on_from(self, other: Life) -> None:
        """Restore what another life saves now."""
        saved = other.state.capture()
        body: Any = saved.body
        self.state.restore(body.view, saved.state)


def shake(model: Any) -> None:
    """Change all that requires gradients, as training does."""
    import torch  # noqa: PLC0415 - as above

    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.rand_like(parameter))
