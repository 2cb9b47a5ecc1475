"""A callback for the trainers of transformers and TRL: predicts the run, logs its figures, keeps its profile.

At the start it prints what FineGauge predicts for the very run that starts, and warns where it will not fit.
While training it adds figures (`LiveTrial` lists them) to the trainer's log, under "finegauge/", so that
every reporter shows them. At the end it keeps a measured Profile in a journal, with the machine's
fingerprint. On several processes the first one speaks. Whatever goes wrong in here is said once, as a
warning, and never stops a training.
"""

import atexit
import logging
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any

import torch
from transformers import TrainerCallback as Base

from finegauge.callbacks.run import live_run, machines, num_devices
from finegauge.callbacks.trial import DATA, FORWARD_BACKWARD, OPTIMIZER, SOURCE, LiveTrial, Price, price_of
from finegauge.errors import FineGaugeError
from finegauge.measurement.device import device_name, fingerprint, out_of_memory_reason
from finegauge.prediction.predictor import Prediction, prediction_for
from finegauge.profile import Profile, Source
from finegauge.render.report import Section
from finegauge.render.terminal import section_lines
from finegauge.render.training import end_section, nothing_predicted, start_section
from finegauge.run.run import Run
from finegauge.store.journal import Trials

PREFIX = "finegauge/"
JOURNAL = "finegauge.jsonl"  # in the trainer's output folder
_Event = Callable[..., None]

logger = logging.getLogger("finegauge")


def _never_fatal(event: _Event) -> _Event:
    """Return `event` such that an error in it is a warning; after one, nothing is done any more."""

    @wraps(event)
    def guarded(callback: "TrainerCallback", *arguments: Any, **named: Any) -> None:
        if callback.has_failed:
            return
        try:
            event(callback, *arguments, **named)
        except Exception as error:
            callback.fail(error)

    return guarded


def _noted(note: Callable[[LiveTrial], None]) -> _Event:
    @_never_fatal
    def event(callback: "TrainerCallback", *_: Any, **__: Any) -> None:
        if callback._live is not None:
            note(callback._live)

    return event


class TrainerCallback(Base):  # type: ignore[misc]
    """Predicts a training at its start, logs its figures, and keeps its measured profile at the end."""

    def __init__(
        self, *, usd_per_hour: float | None = None, offer: str | None = None, store: str | None = "",
        say: Callable[[str], None] | None = None,
    ) -> None:  # fmt: skip
        """Prepare; nothing is loaded or read before the training starts.

        Args:
            usd_per_hour: Price of an hour of all machines together; by default that of `offer`, or the
                cheapest on demand that the catalogue has for this GPU.
            offer: A provider, an instance, or "provider/instance" of `finegauge offers`.
            store: The journal that keeps the profile; by default finegauge.jsonl in the output folder;
                None keeps nothing.
            say: Gets each text to show; by default it is printed.
        """
        self.usd_per_hour, self.offer, self.store = usd_per_hour, offer, store
        self.profile: Profile | None = None  # what was measured, once the training is over
        self.prediction: Prediction | None = None
        self.run: Run | None = None  # what is trained; None where it is not supported
        self._say = say or _printed
        self._live: LiveTrial | None = None
        self._trials: Trials | None = None
        self._trial = ""
        self.has_failed = False

    @_never_fatal
    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Predict, speak, start the instruments, and note in the journal that a training began."""
        del control
        self._close("interrupted", "another training began")
        self.profile = self.prediction = self.run = None
        if not state.is_world_process_zero:
            return
        _come_before_reporters(self)
        model, device = kwargs["model"], torch.device(args.device)
        price = self._price(args, device)
        why_not = self._understand(model, args, kwargs.get("train_dataloader"), state.max_steps)
        if self.run is None:
            self._show(nothing_predicted(why_not))
        else:
            self._announce(self.run, args, state, device, price)
        processes, nodes = machines(args)
        self._live = LiveTrial(
            self.run, model, device, price=price, processes=processes, is_compiled=bool(args.torch_compile),
            devices_here=num_devices(args) if nodes == 1 else 0,
        )  # fmt: skip
        self._open_trial(args, state)

    on_step_begin = _noted(lambda live: live.timer.stage(DATA))  # the batches are there
    on_pre_optimizer_step = _noted(lambda live: live.timer.stage(FORWARD_BACKWARD))
    on_optimizer_step = _noted(lambda live: live.timer.stage(OPTIMIZER))
    on_step_end = _noted(LiveTrial.end_step)
    on_evaluate = on_save = _noted(lambda live: live.timer.resume())  # neither is part of the next step

    @_never_fatal
    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Add the figures to the trainer's log, and to the history that it saves."""
        logs = kwargs.get("logs")
        if self._live is None or not logs or any(name.startswith("eval_") for name in logs):
            return
        figures = {PREFIX + name: value for name, value in self._live.figures(state, logs).items()}
        logs.update(figures)
        if state.log_history and state.log_history[-1].get("step") == state.global_step:
            state.log_history[-1].update(figures)

    @_never_fatal
    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Measure what was seen, keep it, and say so."""
        live, self._live = self._live, None
        if live is None:
            return
        live.stop()
        if self.run is None:
            return
        self.profile = live.profile()
        path = self._trials.journal.path if self._trials is not None else ""
        self._end_trial(self.profile)
        predicted = self.prediction.profile if self.prediction is not None else None
        self._show(end_section(self.profile, predicted, path))

    def _show(self, part: Section) -> None:
        self._say("\n".join(section_lines(part)))

    def _understand(self, model: Any, args: Any, loader: Any, max_steps: int) -> str:
        """Note what is trained, or return why that is not known; the figures are logged all the same."""
        try:
            self.run = live_run(model, args, loader=loader, max_steps=max_steps)
        except FineGaugeError as error:
            return str(error)
        except Exception as error:
            return f"an error of FineGauge's own ({type(error).__name__}: {error}); please report it"
        return ""

    def _announce(self, run: Run, args: Any, state: Any, device: torch.device, price: Price | None) -> None:
        name = device_name(device)
        try:
            self.prediction = prediction_for(run, device.type, name)
        except Exception as error:
            logger.warning(
                "FineGauge: the prediction failed (%s: %s); please report it.", type(error).__name__, error
            )
            return
        told = start_section(
            run,
            self.prediction,
            device=name,
            num_steps=max(0, state.max_steps - state.global_step) or None,
            usd_per_h=price.usd_per_h if price is not None else None,
            price_said=price.said if price is not None else "",
            has_evaluation=str(getattr(args.eval_strategy, "value", args.eval_strategy)) != "no",
        )
        self._show(told)

    def _price(self, args: Any, device: torch.device) -> Price | None:
        """Return the price of an hour; log what is wrong with the offer."""
        gpu, nodes = device_name(device) if device.type == "cuda" else "", machines(args)[1]
        try:
            return price_of(
                self.usd_per_hour, self.offer, gpu=gpu, num_gpus=num_devices(args), num_nodes=nodes
            )
        except FineGaugeError as error:
            logger.warning("FineGauge: %s No cost is logged.", error)
            return None

    def _open_trial(self, args: Any, state: Any) -> None:
        """Note the start of the training in the journal; log where that cannot be written."""
        if self.run is None or self.store is None:
            return
        trials = Trials(os.fspath(self.store) or os.path.join(args.output_dir, JOURNAL))
        try:
            trials.recover()
            self._trial = trials.start(self.run, {"by": SOURCE, "max_steps": state.max_steps})
        except FineGaugeError as error:
            logger.warning("FineGauge: %s The profile of this training is not kept.", error)
            return
        self._trials = trials
        atexit.register(self._at_exit)

    def _end_trial(self, profile: Profile) -> None:
        trials, self._trials = self._trials, None
        atexit.unregister(self._at_exit)
        if trials is not None:
            trials.end(self._trial, profile)

    def _close(self, outcome: str, reason: str) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()
        if self._trials is not None and self.run is not None:
            self._end_trial(
                Profile(
                    run=self.run, source=Source("measured", SOURCE), outcome=outcome, reason=reason,
                    fingerprint=fingerprint(torch.device("cpu")),
                )
            )  # fmt: skip

    def _at_exit(self) -> None:
        """Note how the process ended during a training: out of memory is worth knowing."""
        error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        with suppress(FineGaugeError):
            self._close(*_how_it_ended(error))

    def fail(self, error: Exception) -> None:
        """Say once that something went wrong in here, and do nothing from now on."""
        self.has_failed = True
        live, self._live = self._live, None
        logger.warning(
            "FineGauge: the callback stops, the training goes on (%s: %s); please report it.",
            type(error).__name__,
            error,
        )
        if live is not None:
            live.stop()


def _come_before_reporters(callback: TrainerCallback) -> None:
    """Put `callback` first among the trainer's callbacks.

    A trainer hands the same log to one callback after the other, and its own reporters come before those of
    the user. Callbacks are not told whose they are, so the handler is found as the caller, some frames up.
    """
    frame = sys._getframe(1)
    while frame is not None:
        callbacks = getattr(frame.f_locals.get("self"), "callbacks", None)
        if isinstance(callbacks, list) and any(each is callback for each in callbacks):
            callbacks.remove(callback)
            callbacks.insert(0, callback)
            return
        frame = frame.f_back  # type: ignore[assignment]
    logger.warning("FineGauge: reporters that were added before the callback do not see its figures.")


def _how_it_ended(error: BaseException | None) -> tuple[str, str]:
    """Return the outcome and the reason of a training that `error` ended."""
    if error is None or isinstance(error, KeyboardInterrupt):
        return "interrupted", "the process ended before the training did"
    if reason := out_of_memory_reason(error, limited=False):
        return "out_of_memory", reason
    return "failed", f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _printed(text: str) -> None:
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(f"{text}\n".encode(encoding, errors="replace").decode(encoding))
    sys.stdout.flush()
