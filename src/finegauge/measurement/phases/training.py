"""What phases share: inputs, token losses, the optimizer and its step, the reference model, placement.

The loss of a token is its negative log-probability. Whole logits are what transformers computes: [B, S, V]
values, their fp32 copy and their log-softmax. In chunks, the head runs on 256 tokens at a time, and again
in backward; what TRL does from 1.15 on, by its own function.

Optimizers are PyTorch's AdamW and SGD, bitsandbytes' 8-bit, paged and Lion, Adafactor. Learning rates are
small constants: what a step costs does not depend on them. Who trains for accuracy passes its own.
"""

import copy
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.util import find_spec
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch.nn.functional import cross_entropy, pad
from torch.utils.checkpoint import checkpoint

from finegauge.errors import UnsupportedError
from finegauge.measurement.batches import IGNORED, Batch, batches
from finegauge.measurement.build import autocasting
from finegauge.measurement.options import Options
from finegauge.measurement.subject import SINGLE_PROCESS, SingleProcess, Subject, Trained
from finegauge.model.layers import TILE_WORDS
from finegauge.run.phases import tiles_loss
from finegauge.run.run import Run

CHUNK_TOKENS = 256
MAX_GRADIENT_NORM = 1.0  # the default of transformers' and TRL's trainers


def refuse_fused(run: Run) -> None:
    """Refuse a loss that is a GPU kernel of another package, or of a package that is not installed."""
    if tiles_loss(run) and find_spec("trl") is None:
        raise UnsupportedError(
            "TRL takes a chunked loss by a function of its own, and is not installed: "
            "pip install 'trl>=1.15', or set loss=full_logits."
        )
    if run.loss == "fused":
        raise UnsupportedError(
            "loss=fused is a Triton kernel that is not measured; use loss=chunked or full_logits."
        )


def token_losses(subject: Subject, inputs: dict[str, Any], labels: torch.Tensor) -> torch.Tensor:
    """Return the loss of predicting each token's successor, shape [B, S], fp32.

    Args:
        subject: The model; its run says whether all logits are held at once.
        inputs: Its arguments: input_ids, attention_mask, position_ids.
        labels: Token ids, -100 where no loss is taken; the loss there is 0.
    """
    targets = pad(labels, (0, 1), value=IGNORED)[:, 1:]
    if subject.run.loss != "chunked":
        logits = subject.model(**inputs, use_cache=False).logits
        return _losses(logits.flatten(0, 1), targets.flatten()).view_as(targets)
    decoder, head = subject.base.get_decoder(), subject.base.get_output_embeddings()
    hidden = decoder(**inputs, use_cache=False).last_hidden_state
    if tiles_loss(subject.run):
        return _tiled(hidden[:, :-1], head, labels[:, 1:])
    chunks = zip(hidden.flatten(0, 1).split(CHUNK_TOKENS), targets.flatten().split(CHUNK_TOKENS), strict=True)

    def part(states: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return _losses(head(states), wanted)

    return torch.cat([checkpoint(part, *chunk, use_reentrant=False) for chunk in chunks]).view_as(targets)


def _tiled(hidden: torch.Tensor, head: Any, targets: torch.Tensor) -> torch.Tensor:
    """Return the losses as TRL's trainers take them from 1.15 on: tiles of tokens and words."""
    from trl.kernels import ChunkedLogProbFunction

    flat, known = hidden.reshape(-1, hidden.size(-1)), targets != IGNORED
    found = ChunkedLogProbFunction.apply(
        flat,
        head.weight,
        head.bias,
        targets.clamp(min=0).reshape(-1),
        1.0,
        int(TILE_WORDS),
        None,
        1.0,
        ("entropy",),
    )[0]
    return pad(-found.view(targets.shape).masked_fill(~known, 0.0), (0, 1))


def _losses(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return cross_entropy(logits.float(), targets, ignore_index=IGNORED, reduction="none")


def inputs_of(batch: Batch) -> dict[str, Any]:
    """Return the arguments of a forward pass; what nothing needs is left out."""
    known = {
        "input_ids": batch.input_ids,
        "attention_mask": batch.attention_mask,
        "position_ids": batch.position_ids,
    }
    return {name: value for name, value in known.items() if value is not None}


def inputs_with(ids: torch.Tensor, mask: torch.Tensor) -> dict[str, Any]:
    """Return the arguments of a forward pass over `ids`; a mask that hides nothing is left out."""
    return {"input_ids": ids} if bool(mask.all()) else {"input_ids": ids, "attention_mask": mask}


def mask_of(batch: Batch) -> torch.Tensor:
    """Return which tokens of a batch are real, as integers."""
    return torch.ones_like(batch.input_ids) if batch.attention_mask is None else batch.attention_mask


@contextmanager
def inference(model: Any) -> Iterator[None]:
    """Put `model` into evaluation mode, without gradients or checkpoints, for a while."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)


class Update:
    """An optimizer with what stands around it in a trainer: autocast, loss scaling, clipping."""

    def __init__(
        self,
        run: Run,
        optimizer: Any,
        trained: Sequence[torch.nn.Parameter],
        device: torch.device,
        strategy: SingleProcess = SINGLE_PROCESS,
    ) -> None:
        """Prepare the updates of `trained`; fp16 over fp32 weights gets a loss scale."""
        self.strategy = strategy
        self.run, self.optimizer, self.trained, self.device = run, optimizer, trained, device
        self.clips = run.optimizer_implementation != "in_backward"  # else gradients are gone by then
        scales = run.autocast == "fp16" and all(p.dtype == torch.float32 for p in trained)
        self.scaler = torch.amp.GradScaler(device.type, enabled=scales)

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the precision that forward passes run under."""
        return autocasting(self.run, self.device)

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradients of `loss` to those that are there."""
        self.strategy.backward(self.scaler.scale(loss))

    def step(self) -> None:
        """Clip the gradients to a norm of 1, update the parameters, drop the gradients."""
        self.strategy.step(self.trained, self._update)

    def _update(self) -> None:
        if self.clips:
            self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.trained, MAX_GRADIENT_NORM)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)


class Reference(NamedTuple):
    """The model as it was before tuning, which preference losses compare with.

    Where adapters train, it is the policy with its adapters switched off; else a frozen copy in memory.
    """

    subject: Subject
    copied: bool

    @classmethod
    def of(cls, policy: Subject, before: Subject | None) -> "Reference":
        """Return the reference that `policy` is compared with: the copy of `before`, or itself."""
        return cls(policy, copied=False) if before is None else cls(before, copied=True)

    @property
    def models(self) -> dict[str, Any]:
        """Return what lies in memory beside the policy, by role."""
        return {"reference": self.subject.model} if self.copied else {}

    def token_losses(self, inputs: dict[str, Any], labels: torch.Tensor) -> torch.Tensor:
        """Return the loss of every next token, [B, S], without gradients."""
        with torch.no_grad(), nullcontext() if self.copied else self.subject.model.disable_adapter():
            found: torch.Tensor = self.subject.strategy.infer(token_losses, self.subject, inputs, labels)
            return found


def copied_before(policy: Subject) -> Subject | None:
    """Return a frozen copy of `policy`, before it trains; None where switching adapters off will do."""
    if policy.run.trains_adapters:
        return None
    return policy._replace(model=frozen(copy.deepcopy(policy.model)))


def frozen(model: Any) -> Any:
    """Return `model` in evaluation mode, with no parameter that trains."""
    return model.eval().requires_grad_(False)


class Placement:
    """Where the models of a phase go, and who trains them: whole, in this process, with one optimizer."""

    rank = 0

    def trained(self, *subjects: Subject) -> tuple[Trained, ...]:
        """Return `subjects`, all of which train in one phase, with one optimizer for all of them."""
        parameters = chain.from_iterable(subject.trained for subject in subjects)
        optimizer = optimizer_of(subjects[0].run, parameters)
        return tuple(Trained(subject, optimizer) for subject in subjects)

    def frozen(self, subject: Subject) -> Subject:
        """Return an inference-only model."""
        return subject

    def data(self, run: Run, options: Options) -> Iterator[Batch]:
        """Return the batches of `run` for this process."""
        vocabulary = int(run.config["vocab_size"])
        return batches(run, vocabulary, options.device, options.seed, rank=self.rank)


LEARNING_RATE = 1e-4
_BITSANDBYTES = {
    "adamw_8bit": "AdamW8bit",
    "paged_adamw": "PagedAdamW32bit",
    "paged_adamw_8bit": "PagedAdamW8bit",
    "lion": "Lion32bit",
    "lion_8bit": "Lion8bit",
    "paged_lion": "PagedLion32bit",
    "paged_lion_8bit": "PagedLion8bit",
    "ademamix": "AdEMAMix32bit",
    "ademamix_8bit": "AdEMAMix8bit",
    "paged_ademamix": "PagedAdEMAMix32bit",
    "paged_ademamix_8bit": "PagedAdEMAMix8bit",
    "rmsprop_8bit": "RMSprop8bit",
}


def optimizer_of(
    run: Run, parameters: Iterable[torch.nn.Parameter], *, learning_rate: float = LEARNING_RATE
) -> Any:
    """Return the optimizer of `run` over `parameters`: `step()` and `zero_grad(set_to_none=True)`.

    With optimizer_implementation=in_backward every parameter is updated as its gradient
    arrives and `step()` has nothing left to do.

    Raises: UnsupportedError where in_backward meets accumulated gradients.
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if run.optimizer_implementation != "in_backward":
        return _made(run, trained, learning_rate)
    if run.gradient_accumulation_steps > 1:
        raise UnsupportedError(
            f"optimizer_implementation=in_backward updates at every micro-batch, which "
            f"gradient_accumulation_steps={run.gradient_accumulation_steps} rules out; use 1."
        )
    return InBackward(run, trained, learning_rate)


class InBackward:
    """One optimizer per parameter, stepped in backward as soon as the gradient is complete."""

    def __init__(self, run: Run, trained: list[torch.nn.Parameter], learning_rate: float) -> None:
        self.optimizers = {id(p): _made(run, [p], learning_rate) for p in trained}
        for parameter in trained:
            parameter.register_post_accumulate_grad_hook(self._update)

    def _update(self, parameter: torch.nn.Parameter) -> None:
        self.optimizers[id(parameter)].step()
        parameter.grad = None

    def step(self) -> None:
        """Do nothing: backward has updated everything."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Do nothing: no gradient is left."""
        del set_to_none

    @property
    def state(self) -> dict[Any, Any]:
        """Return the states of all parameters, as one optimizer would hold them."""
        return {p: state for each in self.optimizers.values() for p, state in each.state.items()}

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Return the groups of all optimizers."""
        return [group for each in self.optimizers.values() for group in each.param_groups]


def _made(run: Run, trained: list[torch.nn.Parameter], learning_rate: float) -> Any:
    how = run.optimizer_implementation
    if run.optimizer == "adamw":
        return torch.optim.AdamW(trained, lr=learning_rate, fused=how == "fused", foreach=how == "foreach")
    if run.optimizer == "sgd":
        return torch.optim.SGD(trained, lr=learning_rate, fused=how == "fused", foreach=how == "foreach")
    if run.optimizer == "adafactor":
        from transformers.optimization import Adafactor

        return Adafactor(trained, lr=learning_rate, scale_parameter=False, relative_step=False)
    if run.optimizer in ("adagrad", "rmsprop"):
        kind = {"adagrad": torch.optim.Adagrad, "rmsprop": torch.optim.RMSprop}[run.optimizer]
        return kind(trained, lr=learning_rate, foreach=how != "loop")
    if run.optimizer not in _BITSANDBYTES:
        raise UnsupportedError(f"optimizer={run.optimizer} is predicted, but cannot be measured; use adamw.")
    import bitsandbytes

    return getattr(bitsandbytes.optim, _BITSANDBYTES[run.optimizer])(trained, lr=learning_rate)
