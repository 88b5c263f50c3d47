# SPDX-License-Identifier: Apache-2.0
"""`adapters` while a program changes its PeftModel: switched, extended, merged, wrapped, initialised."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spotwatch.errors import ConfigError, StoreError
from spotwatch.train import Checkpointer
from spotwatch.train.integrations.peft import adapters

from .peft_help import Life, shake, tiny

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", reason="needs transformers")
peft = pytest.importorskip("peft", reason="needs peft")
pytestmark = [
    pytest.mark.timeout(120),  # the libraries import much at their first use
    # What transformers and peft of these versions say of themselves.
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers"),
    pytest.mark.filterwarnings("ignore::UserWarning:peft"),
]


def made(base: Any = None, **options: Any) -> Any:
    """Return a base with LoRA."""
    config = {"r": 4, "target_modules": ["q_proj", "v_proj"], **options}
    return peft.get_peft_model(tiny() if base is None else base, peft.LoraConfig(**config))


def with_other(model: Any, **options: Any) -> Any:
    """Add a second adapter, and let the first stay active."""
    model.add_adapter("other", peft.LoraConfig(**{"r": 2, "target_modules": ["q_proj"], **options}))
    return model


def logits(model: Any) -> Any:
    """Return what the model says of some tokens."""
    model.eval()
    with torch.no_grad():
        return model(torch.arange(8)[None]).logits


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"r": 8}, "r was 4 when it was saved, and is 8 here"),
        ({"lora_alpha": 32}, "lora_alpha was 8 when it was saved, and is 32 here"),
        (
            {"target_modules": ["q_proj"]},
            r"target_modules was \['q_proj', 'v_proj'\] when .* is \['q_proj'\] here",
        ),
        ({"lora_dropout": 0.1}, "lora_dropout was 0.0 when it was saved, and is 0.1 here"),
        ({"use_rslora": True}, "use_rslora was False when it was saved, and is True here"),
        (
            {"modules_to_save": ["lm_head"]},
            r"modules_to_save was None when it was saved, and is \['lm_head'\]",
        ),
    ],
)
def test_other_adapters_are_refused(options: dict[str, Any], told: str) -> None:
    """The first difference of the configurations is named, and nothing has been touched."""
    second = Life(made(**options))
    before = {name: tensor.clone() for name, tensor in second.model.state_dict().items()}
    with pytest.raises(StoreError, match=f"adapter 'default': {told}"):
        second.go_on_from(Life(made()))
    assert all(torch.equal(tensor, before[name]) for name, tensor in second.model.state_dict().items())


@pytest.mark.parametrize(
    "options",
    [
        {"target_modules": r".*\.(q|v)_proj"},
        {"exclude_modules": ["lm_head"]},
        {"layers_to_transform": [0, 1]},
        {"task_type": "CAUSAL_LM"},
    ],
)
def test_the_same_layers_in_other_words_are_no_difference(options: dict[str, Any]) -> None:
    """A pattern instead of a list, a task that changes nothing: which layers have adapters is compared."""
    first, second = Life(made()), Life(made(**options))
    shake(first.model)
    second.go_on_from(first)
    assert torch.equal(logits(first.model), logits(second.model))


def test_a_task_makes_a_difference_to_prompts() -> None:
    """Without a task peft does not put the tokens of a prompt before the input."""
    first, second = (
        Life(peft.get_peft_model(tiny(), peft.PromptTuningConfig(task_type=task, num_virtual_tokens=3)))
        for task in ("CAUSAL_LM", "FEATURE_EXTRACTION")
    )
    with pytest.raises(StoreError, match=r"task_type was 'CAUSAL_LM' when .* 'FEATURE_EXTRACTION' here"):
        second.go_on_from(first)


def test_adapters_in_other_layers_are_refused() -> None:
    """Even if all tensors had the same names, each layer must have the adapters that it had."""
    life = Life(made(target_modules=r".*\.q_proj"))
    state = life.adapters.state_dict()
    name, other = state["scales"]
    del state["scales"][name]
    with pytest.raises(StoreError, match=rf"{name} had no adapters when .* has \['scaling\.default'\] here"):
        life.adapters.load_state_dict(state)
    state = life.adapters.state_dict()
    state["scales"][other] = {}
    state["adapters"]["default"]["target_modules"] = ["q_proj"]
    with pytest.raises(StoreError, match=r"target_modules was \['q_proj'\] when it was saved"):
        life.adapters.load_state_dict(state)


def test_scales_that_the_program_has_set_come_back() -> None:
    """`set_scale` and `scale_layer` change no tensor: a layer's scale of each adapter is saved."""
    first, second = Life(with_other(made())), Life(with_other(made()))
    shake(first.model)
    layers = first.model.base_model.model.model.layers
    layers[0].self_attn.q_proj.set_scale("default", 3.0)
    layers[1].self_attn.q_proj.set_scale("other", 1 / 3)
    layers[1].self_attn.v_proj.scale_layer(0.1)
    second.go_on_from(first)
    again = second.model.base_model.model.model.layers
    for one, other in zip(layers, again, strict=True):
        for name in ("q_proj", "v_proj"):
            assert getattr(one.self_attn, name).scaling == getattr(other.self_attn, name).scaling
    assert again[0].self_attn.q_proj.scaling["default"] == 6.0
    assert torch.equal(logits(first.model), logits(second.model))


def test_scales_that_are_tensors_stay_the_same_tensors() -> None:
    """Peft makes them so for a compiled model, which holds them: they are written into."""
    first, second = Life(made()), Life(made())
    layers = [life.model.base_model.model.model.layers[0].self_attn.q_proj for life in (first, second)]
    layers[0].scaling["default"] = torch.tensor(1 / 3)
    held = layers[1].scaling["default"] = torch.tensor(2.0)
    second.go_on_from(first)
    assert layers[1].scaling["default"] is held
    assert held == torch.tensor(1 / 3)


def test_how_a_weight_began_is_no_difference() -> None:
    """Other initial values than at first are overwritten anyway, and so are not compared."""
    first, second = Life(made()), Life(made(init_lora_weights="gaussian"))
    shake(first.model)
    second.go_on_from(first)
    assert torch.equal(logits(first.model), logits(second.model))


@pytest.mark.parametrize(("value", "fits"), [(False, True), (True, False)])
def test_what_an_older_peft_did_not_know_had_its_default(*, value: bool, fits: bool) -> None:
    """A field that came with a newer version is no difference while it is as if it were not there."""
    life = Life(made(use_rslora=value))
    state = life.adapters.state_dict()
    del state["adapters"]["default"]["use_rslora"]
    if fits:
        life.adapters.load_state_dict(state)
        return
    with pytest.raises(StoreError, match="use_rslora was False when it was saved, and is True here"):
        life.adapters.load_state_dict(state)


def test_an_adapter_that_is_added_later_is_saved_and_wanted() -> None:
    """`add_adapter` after `track`: saved from then on; the next life must have it, and no other."""
    first = Life(made())
    before = first.names()
    with_other(first.model)
    assert len(first.names() - before) == 4
    with pytest.raises(StoreError, match=r"the adapter 'other' is not here: add it before resume\(\)"):
        Life(made()).go_on_from(first)
    Life(with_other(made())).go_on_from(first)
    with pytest.raises(StoreError, match="the adapter 'other' is here only"):
        Life(with_other(made())).go_on_from(Life(made()))


def test_adapters_that_are_not_trained_are_saved_all_the_same() -> None:
    """Frozen adapters are no part of the base: layers, a shared projection, the tokens of a prompt."""
    prompt = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    vera = peft.VeraConfig(r=4, target_modules=["q_proj"])
    for config, count in ((prompt, 1), (vera, 6), (peft.LoraConfig(target_modules=["q_proj"]), 4)):
        model = peft.get_peft_model(tiny(), config)
        model.requires_grad_(False)
        assert len(Life(model).names()) == count


def test_the_active_adapter_comes_back() -> None:
    """After `set_adapter` the next life goes on with that one, and its gradients are asked for again."""
    first, second = Life(with_other(made())), Life(with_other(made()))
    first.model.set_adapter("other")
    shake(first.model)
    second.go_on_from(first)
    assert second.model.active_adapters == ["other"]
    assert [p.requires_grad for p in second.model.parameters()] == [
        p.requires_grad for p in first.model.parameters()
    ]
    assert torch.equal(logits(first.model), logits(second.model))


def test_several_active_adapters_come_back() -> None:
    """Two adapters that are active together are so again."""
    first, second = Life(with_other(made())), Life(with_other(made()))
    first.model.base_model.set_adapter(["default", "other"])
    shake(first.model)
    second.go_on_from(first)
    assert second.model.active_adapters == ["default", "other"]
    assert torch.equal(logits(first.model), logits(second.model))


def test_switched_off_adapters_are_not_mistaken() -> None:
    """Disabled when saved, and enabled now: said, for they would train something else."""
    first = Life(made())
    first.model.base_model.disable_adapter_layers()
    with pytest.raises(StoreError, match=r"the adapters were disabled when it was saved"):
        Life(made()).go_on_from(first)
    second = made()
    second.base_model.disable_adapter_layers()
    Life(second).go_on_from(first)


def test_merged_adapters_are_refused_and_a_merge_taken_back_is_noticed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """While merged there is no base: said. Unmerged, its rounding errors stay, and come back too."""
    first, second = Life(made()), Life(made())
    shake(first.model)
    first.model.merge_adapter()
    with pytest.raises(ConfigError, match=r"q_proj: the adapters \['default'\] are merged into the base"):
        first.state.encode()
    first.model.unmerge_adapter()
    second.go_on_from(first)
    assert "changed though frozen" in caplog.text
    assert torch.equal(logits(first.model), logits(second.model))


def test_adapters_without_a_peft_model() -> None:
    """Layers that were put into the model itself, as diffusers does: the same holds."""

    def model(rank: int) -> Any:
        return peft.inject_adapter_in_model(peft.LoraConfig(r=rank, target_modules=["q_proj"]), tiny())

    first, second = Life(model(4)), Life(model(4))
    shake(first.model)
    second.go_on_from(first)
    assert len(first.names()) == 4
    assert torch.equal(logits(first.model), logits(second.model))
    with pytest.raises(StoreError, match="r was 4 when it was saved"):
        Life(model(8)).go_on_from(first)


def by_chance(seed: int) -> Any:
    """Return a model whose base is changed before training, by a decomposition that draws chance."""
    base = tiny()
    torch.manual_seed(seed)
    return made(base, init_lora_weights="pissa_niter_2")


def test_a_base_that_is_changed_at_the_beginning_must_be_changed_alike() -> None:
    """PiSSA takes its part out of the base: done otherwise, the base is another; with `also` it is saved."""
    first = Life(by_chance(1))
    Life(by_chance(1)).go_on_from(first)
    with pytest.raises(StoreError, match=r"q_proj\.base_layer\.weight has other values"):
        Life(by_chance(2)).go_on_from(first)
    whole = "*.base_layer.weight"
    first, second = Life(by_chance(1), also=whole), Life(by_chance(2), also=whole)
    second.go_on_from(first)
    assert torch.equal(logits(first.model), logits(second.model))


def test_gradients_that_a_wrapper_would_not_see_are_refused() -> None:
    """DistributedDataParallel asks once what is trained: a change of that at `resume` must come before."""
    wrapper = type("DistributedDataParallel", (torch.nn.Module,), {"__module__": "torch.nn.parallel"})

    def wrapped(model: Any) -> Any:
        outer = wrapper()
        outer.module = model
        return outer

    first = Life(with_other(made()))
    first.model.set_adapter("other")
    second = Life(wrapped(with_other(made())))
    with pytest.raises(StoreError, match="do that before DistributedDataParallel wraps the model"):
        second.go_on_from(first)
    ready = with_other(made())
    ready.set_adapter("other")
    Life(wrapped(ready)).go_on_from(first)


def test_gradient_checkpointing_makes_no_difference() -> None:
    """It is no state: saved with it, resumed without."""
    first, second = Life(made()), Life(made())
    first.model.enable_input_require_grads()
    first.model.gradient_checkpointing_enable({"use_reentrant": False})
    first.model.train()
    first.model(torch.arange(8)[None], labels=torch.arange(8)[None]).loss.backward()
    shake(first.model)
    second.go_on_from(first)
    assert torch.equal(logits(first.model), logits(second.model))


def test_an_old_peft_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version that the layers are not known of is refused by its number."""
    monkeypatch.setattr("spotwatch.train.integrations.versions.version", lambda _: "0.9.0")
    with pytest.raises(ConfigError, match=r"peft 0\.9\.0 is too old: pip install 'peft>="):
        adapters(made())


@pytest.mark.parametrize("all_parameters", [False, True])
def test_a_checkpoint_is_below_two_percent_of_its_base(*, all_parameters: bool, tmp_path: Path) -> None:
    """A base of 34 million parameters, LoRA on the attention: a whole checkpoint, with the optimizer."""
    config = transformers.LlamaConfig(
        vocab_size=8192,
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=8,
    )
    model = made(transformers.LlamaForCausalLM(config), r=8)
    chosen = [one for one in model.parameters() if one.requires_grad or all_parameters]
    optimizer = torch.optim.AdamW(chosen)
    (tmp_path / "runtime").mkdir(mode=0o700)
    environ = {"SPOTWATCH_RUNTIME_DIR": str(tmp_path / "runtime")}
    ck = Checkpointer(tmp_path / "store", run_id="run", environ=environ)
    ck.track(model=adapters(model), optimizer=optimizer)
    step = ck.resume()
    with ck:
        tokens = torch.arange(16)[None]
        model(tokens, labels=tokens).loss.backward()
        optimizer.step()
        ck.step(step + 1)
    (saved,) = (tmp_path / "store" / "run").glob("step-*")
    base = sum(one.nbytes for name, one in model.named_parameters() if "lora_" not in name)
    size = sum(file.stat().st_size for file in saved.iterdir())
    assert base == 136_349_696
    assert 1_500_000 < size < 0.02 * base
