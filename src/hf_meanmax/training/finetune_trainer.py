"""transformers' Trainer for labels: its arguments, scores, progress and early stopping."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from transformers import (
    DataCollatorWithPadding,
    EarlyStoppingCallback,
    ProgressCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from hf_meanmax.files import Json, read_json
from hf_meanmax.hardware import return_freed_memory, usable_device, uses_bf16
from hf_meanmax.progress import progress_bar

from .checkpoints import CHECKPOINTS
from .finetune_settings import FinetuneArguments

if TYPE_CHECKING:
    from collections.abc import Sized

    from tqdm.auto import tqdm
    from transformers import (
        EvalPrediction,
        PreTrainedModel,
        PreTrainedTokenizerBase,
        TrainerControl,
        TrainerState,
    )
    from transformers.utils import ModelOutput


def build_trainer(
    args: FinetuneArguments,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sets: list[list[Json]],
    metric: str,
    latest: Path | None,
) -> Trainer:
    """A Trainer on `sets[0]`, which evaluates on `sets[1]` after each epoch and keeps the best weights by `metric`;
    `latest` is the checkpoint that it will resume from."""
    trainer = PenaltyTrainer(
        model=model,
        args=_training_arguments(args, Path(args.output_dir), metric),
        train_dataset=sets[0],
        eval_dataset=sets[1],
        processing_class=tokenizer,
        data_collator=DataCollatorWithPadding(tokenizer),
        compute_metrics=_score_classes if args.problem == "classification" else _score_numbers,
        callbacks=[early_stopping(args.early_stopping_patience, latest)] if args.early_stopping_patience else [],
    )
    trainer.add_callback(FreedMemory)
    # In a notebook Trainer has another callback for progress, which is kept.
    if trainer.pop_callback(ProgressCallback) is not None:
        trainer.add_callback(NamedProgress)
    return trainer


def _training_arguments(args: FinetuneArguments, folder: Path, metric: str) -> TrainingArguments:
    """The arguments of transformers' Trainer."""
    schedule: str = args.lr_schedule
    if args.warmup_steps and schedule == "constant":
        schedule = "constant_with_warmup"
    device = usable_device(None)
    return TrainingArguments(
        output_dir=str(folder / CHECKPOINTS),
        # Otherwise Trainer refuses bf16 on a CPU.
        use_cpu=device.type == "cpu",
        num_train_epochs=args.epochs,
        per_device_train_batch_size=args.batch_size,
        per_device_eval_batch_size=args.batch_size,
        gradient_accumulation_steps=args.gradient_accumulation_steps,
        learning_rate=args.learning_rate,
        lr_scheduler_type=schedule,
        warmup_steps=args.warmup_steps,
        weight_decay=args.weight_decay,
        max_grad_norm=args.max_grad_norm,
        bf16=uses_bf16(args.precision, device),
        seed=args.seed,
        train_sampling_strategy="group_by_length",
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=1,
        load_best_model_at_end=True,
        metric_for_best_model=metric,
        greater_is_better=True,
        logging_strategy="epoch",
        logging_nan_inf_filter=False,
        report_to=args.report_to.split(",") if args.report_to else [],
    )


def early_stopping(patience: int, latest: Path | None) -> EarlyStoppingCallback:
    """A callback that stops after `patience` epochs without a better score, including those before `latest`."""
    callback = EarlyStoppingCallback(patience)
    if latest is not None:
        # Trainer would count from 0 again: its option to restore callbacks restores much else.
        state = read_json(latest / "trainer_state.json")
        saved = state["stateful_callbacks"].get(type(callback).__name__, {})
        counted = saved.get("attributes", {}).get("early_stopping_patience_counter", 0)
        callback.early_stopping_patience_counter = counted
    return callback


def _score_classes(prediction: EvalPrediction) -> dict[str, float]:
    return {"accuracy": float((prediction.predictions.argmax(axis=-1) == prediction.label_ids).mean())}


def _score_numbers(prediction: EvalPrediction) -> dict[str, float]:
    predicted = prediction.predictions.reshape(-1)
    # The correlation is undefined where either side is constant.
    varies = len(predicted) > 1 and predicted.std() > 0 and prediction.label_ids.std() > 0
    pearson = float(np.corrcoef(predicted, prediction.label_ids)[0, 1]) if varies else 0.0
    return {"pearson": pearson}


class FreedMemory(TrainerCallback):  # type: ignore[misc]
    """Calls [`return_freed_memory`] after each step on a CPU."""

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        if args.device.type == "cpu":
            return_freed_memory(state.global_step)


class NamedProgress(ProgressCallback):  # type: ignore[misc]
    """transformers' progress bars of training and evaluation, with names."""

    prediction_bar: tqdm | None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        if state.is_world_process_zero:
            self.training_bar = progress_bar(
                total=state.max_steps, initial=state.global_step, desc="train", unit="step"
            )
        self.current_step = state.global_step

    def on_prediction_step(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        *,
        eval_dataloader: Sized,
        **kwargs: object,
    ) -> None:
        if state.is_world_process_zero and self.prediction_bar is None:
            self.prediction_bar = progress_bar(
                total=len(eval_dataloader), desc="evaluate", unit="batch", leave=self.training_bar is None
            )
        super().on_prediction_step(args, state, control, eval_dataloader, **kwargs)


class PenaltyTrainer(Trainer):  # type: ignore[misc]
    """A Trainer that also logs the minutes of a run over all its starts, and the attention penalty in the loss."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.penalties: list[torch.Tensor] = []
        self.started = time.perf_counter()
        self.minutes_before: float | None = None

    def compute_loss(
        self,
        model: PreTrainedModel,
        inputs: dict[str, torch.Tensor],
        return_outputs: bool = False,
        **kwargs: object,
    ) -> torch.Tensor | tuple[torch.Tensor, ModelOutput]:
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **kwargs)
        if outputs.get("attention_penalty") is not None:
            self.penalties.append(outputs["attention_penalty"].detach())
        return (loss, outputs) if return_outputs else loss

    def log(self, logs: dict[str, float], *args: object, **kwargs: object) -> None:
        for name, value in logs.items():
            # Raised before the weights of the epoch are saved.
            if name.endswith("loss") and not math.isfinite(value):
                raise FloatingPointError(
                    f"`{name}` is {value} after epoch {self.state.epoch:.2f}. Lower --learning_rate, lengthen "
                    "--warmup_steps or use --precision fp32, and give another --output_dir or --overwrite."
                )
        if self.minutes_before is None:
            # Minutes logged before the run was resumed.
            self.minutes_before = max((entry.get("minutes", 0.0) for entry in self.state.log_history), default=0.0)
        logs["minutes"] = self.minutes_before + (time.perf_counter() - self.started) / 60
        prefix = next((name.removesuffix("loss") for name in logs if name.endswith("loss")), None)
        # The final record, with `train_loss`, is of all steps, and `penalties` holds none of earlier epochs.
        if self.penalties and prefix not in (None, "train_"):
            logs[f"{prefix}attention_penalty"] = torch.stack(self.penalties).mean().item()
            self.penalties.clear()
        super().log(logs, *args, **kwargs)
