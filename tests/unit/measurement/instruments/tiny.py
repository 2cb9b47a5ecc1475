"""Tiny models and a phase of one batch, for the instruments to look at."""

from collections.abc import Mapping
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
import transformers

from finegauge.measurement.subject import Clock, StepFacts, Subject

SIZES = {
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "use_cache": False,
}
CPU = torch.device("cpu")


@cache
def configs() -> Mapping[str, Any]:
    """Return the smallest config of each family."""
    moe = {"num_experts": 4, "num_experts_per_tok": 2}
    return {
        "llama": transformers.LlamaConfig(**SIZES),
        "mixtral": transformers.MixtralConfig(num_local_experts=4, **SIZES),
        "jamba": transformers.JambaConfig(
            **SIZES, **moe, mamba_d_state=4, attn_layer_period=2, attn_layer_offset=1,
            expert_layer_period=2, expert_layer_offset=1,
        ),
        "qwen3_moe": transformers.Qwen3MoeConfig(**SIZES, **moe, moe_intermediate_size=32, head_dim=8),
        "mamba": transformers.MambaConfig(vocab_size=128, hidden_size=32, num_hidden_layers=2, state_size=4),
        "gemma2": transformers.Gemma2Config(**SIZES, head_dim=8),
        "olmo2": transformers.Olmo2Config(**SIZES),
        "opt": transformers.OPTConfig(
            vocab_size=128, hidden_size=32, ffn_dim=64, num_hidden_layers=2, num_attention_heads=4,
            word_embed_proj_dim=32, max_position_embeddings=64,
        ),
    }  # fmt: skip


class OneBatch:
    """Trains a tiny model on the same 2 x 16 tokens, step by step."""

    def __init__(
        self, family: str, *, checkpointing: bool | None = None, dtype: Any = torch.float32, **settings: Any
    ) -> None:
        """Build `family`; `checkpointing`: reentrant or not, None for none."""
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(configs()[family], **settings)
        model = model.to(dtype).train()
        if checkpointing is not None:
            model.gradient_checkpointing_enable({"use_reentrant": checkpointing})
        if checkpointing:
            model.enable_input_require_grads()
        run: Any = SimpleNamespace(optimizer="adamw")
        self.subject = Subject(run, model, CPU)
        self.models: Mapping[str, Any] = {"policy": model}
        self.ids = torch.randint(0, 128, (2, 16))
        self.optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.0)
        self.gradients: dict[str, torch.Tensor] = {}

    def step(self, clock: Clock) -> StepFacts:
        """Take one step; the gradients stay to be looked at."""
        model = self.subject.model
        with clock.stage("forward"):
            loss = model(input_ids=self.ids, labels=self.ids).loss
        with clock.stage("backward"):
            loss.backward()
        self.gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        with clock.stage("optimizer"):
            self.optimizer.step()
            self.optimizer.zero_grad()
        return StepFacts(32.0, 2.0, float(loss.detach()), 32.0)
