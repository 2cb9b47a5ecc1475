"""BlackMamba as a transformers model: layers that are a Mamba-1 mixer or a mixture of experts.

The mixer, its cache and the model around the layers are transformers' Mamba; the experts
are Mixtral's. The router has a bias and weighs the chosen experts by the softmax over
all; the final norm is a LayerNorm, the head is the embedding. Weights are random: the
published files are pickles under other names, which are not read.

Anthony et al. 2024, arXiv:2402.01771; figures as in the catalogue's row of BlackMamba-2.8B.
"""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.models.mamba.configuration_mamba import MambaConfig
from transformers.models.mamba.modeling_mamba import (
    MambaCausalLMOutput,
    MambaForCausalLM,
    MambaMixer,
    MambaModel,
    MambaPreTrainedModel,
    MambaRMSNorm,
)
from transformers.models.mixtral.modeling_mixtral import MixtralExperts

from finegauge.errors import FieldError, UnsupportedError

MAMBA_LAYER = "r"


class BlackMambaConfig(MambaConfig):
    """BlackMamba's figures under the names of transformers' Mamba, and its layers."""

    model_type = "blackmamba"

    def __init__(
        self,
        mamba_moe_layers: Sequence[str] = (MAMBA_LAYER, "8") * 16,
        ffn_hidden_size: int = 0,
        num_experts_per_tok: int = 1,
        **figures: Any,
    ) -> None:
        """Make the config of layers ("r" a mixer, "8" eight experts) and of Mamba's own figures."""
        self.mamba_moe_layers = list(mamba_moe_layers)
        self.ffn_hidden_size = ffn_hidden_size
        self.num_experts_per_tok = num_experts_per_tok
        super().__init__(**figures)

    @classmethod
    def of(cls, figures: Mapping[str, Any], top_k: int | None) -> "BlackMambaConfig":
        """Return the config of a BlackMamba config.json, `top_k` experts per token if stated.

        Raises: UnsupportedError for variants that were never published.
        """
        kinds = tuple(str(kind) for kind in figures["mamba_moe_layers"])
        if not all(kind == MAMBA_LAYER or kind.isdecimal() for kind in kinds):
            raise FieldError("mamba_moe_layers has an entry that is neither 'r' nor a number of experts.")
        if figures.get("add_bias_linear") or not figures.get("swiglu", True):
            raise UnsupportedError("BlackMamba is built with SwiGLU experts without biases only.")
        hidden = int(figures["hidden_size"])
        return cls(
            mamba_moe_layers=kinds,
            ffn_hidden_size=int(figures.get("ffn_hidden_size") or 4 * hidden),
            num_experts_per_tok=top_k or int(figures.get("topk", 1)),
            hidden_size=hidden,
            num_hidden_layers=len(kinds),
            vocab_size=int(figures["vocab_size"]),
            state_size=int(figures.get("state_size", 16)),
            conv_kernel=int(figures.get("conv_dimension", 4)),
            expand=int(figures.get("expansion_factor", 2)),
            use_bias=bool(figures.get("bias", False)),
            residual_in_fp32=False,
            tie_word_embeddings=bool(figures.get("tie_word_embeddings", True)),
            initializer_range=0.02,
        )

    @property
    def layer_types(self) -> list[str]:
        """Return what transformers' cache keeps for each layer: a state, which experts leave empty."""
        return ["linear_attention"] * len(self.mamba_moe_layers)


class _BlackMambaRouter(nn.Module):
    """Chooses experts by the softmax of a linear with bias, held as bare parameters as Mixtral's is."""

    def __init__(self, hidden: int, num_experts: int, top_k: int) -> None:
        super().__init__()
        self.num_experts, self.top_k = num_experts, min(top_k, num_experts)
        self.weight = nn.Parameter(torch.empty(num_experts, hidden))
        self.bias = nn.Parameter(torch.empty(num_experts))

    def forward(self, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the logits, the weights of the chosen experts and their numbers."""
        logits = nn.functional.linear(states, self.weight, self.bias)
        scores = nn.functional.softmax(logits.float(), dim=-1)
        weights, chosen = torch.topk(scores, self.top_k, dim=-1)
        return logits, weights.to(states.dtype), chosen


class _BlackMambaExperts(MixtralExperts):
    """A layer's experts, in the form and under the implementations of Mixtral's."""

    def __init__(self, config: BlackMambaConfig, num_experts: int) -> None:
        sizes = SimpleNamespace(
            num_local_experts=num_experts,
            hidden_size=config.hidden_size,
            intermediate_size=config.ffn_hidden_size,
            hidden_act=config.hidden_act,
        )
        super().__init__(sizes)
        self.config = config  # which implementation runs is the model's to say


class _BlackMambaMoE(nn.Module):
    """A mixture of experts in a mixer's place."""

    def __init__(self, config: BlackMambaConfig, num_experts: int) -> None:
        super().__init__()
        self.router = _BlackMambaRouter(config.hidden_size, num_experts, config.num_experts_per_tok)
        self.experts = _BlackMambaExperts(config, num_experts)

    def forward(self, hidden_states: Tensor, **unused: Any) -> Tensor:
        del unused  # a mixture keeps no state
        states = hidden_states.view(-1, hidden_states.shape[-1])
        _, weights, chosen = self.router(states)
        return self.experts(states, chosen, weights).view_as(hidden_states)


class _BlackMambaMLP(nn.Module):
    """The one expert of a layer that has no choice."""

    def __init__(self, config: BlackMambaConfig) -> None:
        super().__init__()
        self.linear_fc1 = nn.Linear(config.hidden_size, 2 * config.ffn_hidden_size, bias=False)
        self.linear_fc2 = nn.Linear(config.ffn_hidden_size, config.hidden_size, bias=False)
        self.act_fn = nn.SiLU()

    def forward(self, hidden_states: Tensor, **unused: Any) -> Tensor:
        del unused
        gate, up = self.linear_fc1(hidden_states).chunk(2, dim=-1)
        out: Tensor = self.linear_fc2(self.act_fn(gate) * up)
        return out


class _BlackMambaBlock(GradientCheckpointingLayer):
    """One layer: a norm, a mixer or experts, the residual."""

    def __init__(self, config: BlackMambaConfig, layer_idx: int) -> None:
        super().__init__()
        kind = config.mamba_moe_layers[layer_idx]
        self.norm = MambaRMSNorm(config.hidden_size, eps=config.layer_norm_epsilon)
        if kind == MAMBA_LAYER:
            self.mixer: nn.Module = MambaMixer(config, layer_idx=layer_idx, initialize_mixer_weights=False)
        else:
            self.mixer = _BlackMambaMoE(config, int(kind)) if int(kind) > 1 else _BlackMambaMLP(config)

    def forward(self, hidden_states: Tensor, **state: Any) -> Tensor:
        mixed: Tensor = self.mixer(self.norm(hidden_states), **state)  # `cache_params` is `cache` since 5.24
        return hidden_states + mixed


class BlackMambaPreTrainedModel(MambaPreTrainedModel):
    """What all BlackMamba classes share: how weights begin."""

    config: BlackMambaConfig
    _no_split_modules = ("_BlackMambaBlock",)
    _can_set_experts_implementation_cached_value = True  # transformers would look for it in this file's text

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        std = self.config.initializer_range
        if isinstance(module, _BlackMambaRouter):
            init.normal_(module.weight, mean=0.0, std=std)
            init.zeros_(module.bias)
        elif isinstance(module, _BlackMambaExperts):
            init.normal_(module.gate_up_proj, mean=0.0, std=std)
            init.normal_(module.down_proj, mean=0.0, std=std)


class BlackMambaModel(BlackMambaPreTrainedModel, MambaModel):
    """BlackMamba without its head; the way through the layers is Mamba's."""

    def __init__(self, config: BlackMambaConfig) -> None:
        MambaPreTrainedModel.__init__(self, config)  # neither parent's own modules
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(
            _BlackMambaBlock(config, index) for index in range(config.num_hidden_layers)
        )
        self.gradient_checkpointing = False
        self.norm_f = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_epsilon)
        self.post_init()


class BlackMambaForCausalLM(BlackMambaPreTrainedModel, MambaForCausalLM):
    """BlackMamba with its head, for training and generation."""

    def __init__(self, config: BlackMambaConfig) -> None:
        MambaPreTrainedModel.__init__(self, config)  # neither parent's own modules
        self.backbone = BlackMambaModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        labels: Tensor | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> MambaCausalLMOutput:
        """Return logits in the weights' dtype, and the loss where there are labels."""
        kwargs.pop("return_dict", None)
        for unused in ("position_ids", "cache_position", "past_key_values", "output_attentions"):
            kwargs.pop(unused, None)
        out = self.backbone(input_ids, **kwargs)
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(out.last_hidden_state[:, kept])
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size)
        state = {name: value for name, value in out.items() if name != "last_hidden_state"}
        return MambaCausalLMOutput(loss=loss, logits=logits, **state)
