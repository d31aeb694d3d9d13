"""Pretraining: one loop for every family.

accelerate launch scripts/pretrain.py                                    # learns from installed docstrings, offline
accelerate launch scripts/pretrain.py recipe.yaml --corpus 'my/*.txt' --max_minutes 45
accelerate launch -m hf_meanmax.training.pretrain mean-max-aae-small --corpus my.txt --output_dir runs/mine
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tqdm.auto import tqdm

from hf_meanmax.checkpoint.folder import save_checkpoint
from hf_meanmax.data import (
    BatchPlan,
    CandidateSampler,
    ContextSentences,
    MicroBatches,
    Noise,
    PairedSentences,
    Sentences,
    SentencesAndContext,
    TokenStore,
)
from hf_meanmax.evaluation.reconstruction import score_reconstructions, teacher_forced_counts
from hf_meanmax.evaluation.text_scores import score_texts
from hf_meanmax.files import replacing_file
from hf_meanmax.hardware import (
    PATIENCE,
    attention_for,
    count_flops,
    keep_freed_memory,
    measure_matrix_rate,
    peak_memory_bytes,
    synchronize,
    use_all_cores,
    uses_bf16,
)
from hf_meanmax.inference.reconstruct import reconstruct
from hf_meanmax.modeling.generation import LEAST_OF_EMBEDDING, decoding_bound
from hf_meanmax.modeling.losses import IGNORE_INDEX
from hf_meanmax.objectives import TrainingModel, build_objectives
from hf_meanmax.objectives.decoder_inputs import feed_decoder

from .checkpoints import CHECKPOINTS, METRICS_FILE, Checkpoints, claim_folder
from .optimizer import RowAdam, clip_gradients
from .preparation import prepare, prepare_teacher, prepare_word_vectors, token_ids
from .settings import PretrainArguments
from .showcase import show

# Settings that say how long a run goes on and what it shows, not what each step does.
_FREE_ON_RESUME = {
    "max_steps", "epochs", "max_minutes", "max_training_tokens", "early_stopping_patience", "log_steps", "eval_steps",
    "sample_sentences",
    "checkpoint_steps", "keep_checkpoints", "overwrite", "report_to", "showcase", "normalize", "cache_dir",
    "output_dir", "recipe", "attention",
}  # fmt: skip


def pretrain(args: PretrainArguments) -> dict[str, Any]:
    """Trains a model as `args` say and writes `<output_dir>/model`; resumes a run that was interrupted.

    Returns:
        The summary: steps, tokens, minutes, tokens/s, share of the matrix rate, validation scores.

    Raises:
        ValueError: for settings or data that cannot be trained on.
        FloatingPointError: if the loss is NaN or infinite.
        FileExistsError: if `output_dir` holds a run with other settings.
        OSError: if a result cannot be written.
    """
    return Run(args).execute()


class Run:
    """A training run: what it needs, and its loop."""

    def __init__(self, args: PretrainArguments):
        from accelerate import Accelerator, DistributedDataParallelKwargs, InitProcessGroupKwargs
        from accelerate.utils import DistributedType

        self.args = args
        self.folder = Path(args.output_dir)
        tracker_options: dict[str, Any] = {}
        if args.report_to:
            tracker_options = {"log_with": args.report_to.split(","), "project_dir": str(self.folder)}
        self.accelerator = Accelerator(
            mixed_precision="no",
            kwargs_handlers=[
                DistributedDataParallelKwargs(gradient_as_bucket_view=True),
                InitProcessGroupKwargs(timeout=PATIENCE),
            ],
            **tracker_options,
        )
        self.device = self.accelerator.device
        self.world_size = self.accelerator.num_processes
        self.is_main = self.accelerator.is_main_process
        if args.lazy_adam and self.world_size > 1:
            raise ValueError(f"`lazy_adam` is for one process, not {self.world_size}. Leave it out, or run one.")
        if self.device.type == "cpu":
            if args.compile:
                raise ValueError("`compile` is for GPUs: on a CPU the compiled step gives NaN gradients. Leave it out.")
            use_all_cores(int(os.environ.get("LOCAL_WORLD_SIZE", self.world_size)))
            keep_freed_memory()
        self.is_sharded = self.accelerator.distributed_type == DistributedType.FSDP
        if self.is_sharded and args.decoder_inputs == "own":
            raise ValueError(
                "`decoder_inputs` 'own' needs whole weights in each process. Leave FSDP out, or give 'words'."
            )
        self.use_bf16 = uses_bf16(args.precision, self.device)
        self.checkpoints = Checkpoints(
            self.folder / CHECKPOINTS, args.keep_checkpoints, prefix="model." if self.is_sharded else ""
        )
        self.state: dict[str, Any] = {
            "step": 0, "tokens": 0, "seconds": 0.0, "cpu_seconds": 0.0, "best_step": None, "best_accuracy": -1.0,
            "bad_evaluations": 0, "unlogged_losses": [], "step_seconds": 0.0, "flops_per_token": 0.0,
        }  # fmt: skip
        self.agreed_seconds = 0.0
        self.stop_reason = ""

    def execute(self) -> dict[str, Any]:
        """Prepares, trains, evaluates and exports."""
        args = self.args
        self._claim_folder()
        # The main process fills the cache, the others then find it there.
        with self.accelerator.main_process_first():
            self.prepared = prepare(args, show_progress=self.is_main)
        self.say(f"training corpus: {self.prepared.train.report}")
        if self.prepared.train_target is not None:
            self.say(f"its translations: {self.prepared.train_target.report}")
        self.say(f"held out: {len(self.prepared.validation):,} sentences for validation")
        self.state["learnt_from"] = self.prepared.fingerprint()
        self._build()
        latest = self.checkpoints.latest()
        if latest is not None:
            saved = self.checkpoints.read_state(latest)
            # Before its weights, which another vocabulary does not fit.
            if saved.get("learnt_from", self.state["learnt_from"]) != self.state["learnt_from"]:
                raise FileExistsError(
                    f"{self.folder} holds a run that learnt from other texts or with another tokenizer, so that its "
                    "weights know other words. Give the corpus as it was, another --output_dir, or --overwrite to "
                    "start anew."
                )
            self.state.update(self.checkpoints.load(latest, self.stateful_model, self.optimizer))
            best = self.checkpoints.folder / f"step-{self.state['best_step'] or 0:08d}"
            if args.early_stopping_patience and not best.is_dir():
                # Without early stopping the best weights need not have been saved.
                self.state.update(best_step=None, best_accuracy=-1.0, bad_evaluations=0)
            self.say(f"resumed from {latest}")
        self._trim_metrics()
        self.matrix_rate = measure_matrix_rate(self.device, torch.bfloat16 if self.use_bf16 else torch.float32)
        if args.report_to:
            self.accelerator.init_trackers("hf_meanmax")
        with _termination_flag() as terminated:
            self._train(terminated)
        if self.stop_reason == "terminated":
            option = " without --overwrite" if args.overwrite else ""
            self.say(f"terminated at step {self.state['step']}; the same command{option} resumes")
            self._end()
            return {"step": self.state["step"], "terminated": True}
        if args.early_stopping_patience and self._best_is_older():
            best = self.checkpoints.folder / f"step-{self.state['best_step']:08d}"
            self.checkpoints.load_weights(best, self.stateful_model)
            self.say(f"exporting the best checkpoint, step {self.state['best_step']}")
        summary = self._finish()
        self._end()
        return summary

    def _best_is_older(self) -> bool:
        """Whether an evaluated checkpoint is better than the weights at the end."""
        if self.state["best_step"] is None or self.state["best_step"] == self.state["step"]:
            return False
        if self.stop_reason == "no better accuracy":
            return True
        return self.evaluate()["validation_accuracy"] <= self.state["best_accuracy"]

    def _build(self) -> None:
        """Model, optimizer, batches."""
        args, prepared = self.args, self.prepared
        tokenizer, said_by = prepared.tokenizer, prepared.said_by
        teacher_vectors, derived = None, {}
        if args.teacher:
            with self.accelerator.main_process_first():
                teacher_vectors = prepare_teacher(args, prepared, self.device, show_progress=self.is_main)
            derived["teacher_size"] = teacher_vectors.shape[1]
        if prepared.target_tokenizer is not None:
            derived |= {"separate_vocabularies": True, "input_vocab_size": len(tokenizer)}
        # After the teacher, whose loading may draw numbers of its own.
        torch.manual_seed(args.seed)
        config = args.build_config(
            **derived,
            vocab_size=len(said_by),
            **token_ids(tokenizer),
        )
        with self.accelerator.main_process_first():
            vectors = prepare_word_vectors(
                args, tokenizer, prepared.train, config.embedding_size, show_progress=self.is_main
            )
        attention = attention_for(args.attention, self.device)
        self.model = getattr(transformers, config.full_auto_class).from_config(config, attn_implementation=attention)
        if vectors is None and config.freeze_word_embeddings:
            self.say("warning: the frozen word table is random; give --word_vectors, or do not freeze it")
        if config.freeze_word_embeddings and config.tie_word_embeddings and not config.output_bias:
            self.say(
                "warning: the output layer is the frozen word table, which cannot learn how frequent words are; give "
                "--tie_word_embeddings false --output_bias true"
            )
        if vectors is not None:
            self.model.encoder.embeddings.start_from(torch.from_numpy(np.asarray(vectors)))
        if args.frequency_bias and config.output_bias:
            self.model.start_from_frequencies(torch.from_numpy(prepared.said.token_counts))
        if args.drop_unknown_words:
            self.model.encoder.embeddings.start_unknown_as_mean()
        if args.freeze_encoder:
            self.model.encoder.requires_grad_(False)
        self.model.train()
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.say(
            f"{type(self.model).__name__}: {sum(p.numel() for p in self.model.parameters()):,} parameters, "
            f"{sum(p.numel() for p in trained):,} trained; {self.world_size} process(es) on {self.device.type}, "
            f"{'bf16' if self.use_bf16 else 'fp32'}"
        )
        self.objectives = build_objectives(
            config, args.softmax, args.teacher_weight if args.teacher else 0.0, args.context_weight
        )
        # What the loss holds beside the words, reported apart.
        self.side_losses = tuple(objective.name for objective in self.objectives[1:])
        training_model = TrainingModel(self.model, self.objectives)
        # Tables of zeros take a CPU longer than the rows; a GPU would have to wait for the number of rows.
        self.has_sparse_gradients = args.lazy_adam or (self.world_size == 1 and self.device.type == "cpu")
        if self.has_sparse_gradients:
            self.model.make_gradients_sparse()
        # The optimizer must be made of the parameters where they are in the end, on the device and sharded.
        self.wrapped = self.accelerator.prepare_model(torch.compile(training_model) if args.compile else training_model)
        trained = [parameter for parameter in self.wrapped.parameters() if parameter.requires_grad]
        self.optimizer = RowAdam(
            trained,
            lazy=args.lazy_adam,
            lr=args.learning_rate,
            betas=(args.adam_beta1, args.adam_beta2),
            eps=args.adam_epsilon,
            weight_decay=args.weight_decay,
            fused=self.device.type in ("cpu", "cuda"),
        )
        self.stateful_model = self.wrapped if self.is_sharded else self.model
        self.trained = trained

        noise = Noise(args.word_drop, args.word_swap) if args.word_drop or args.word_swap else None
        candidates = None
        if args.softmax == "sampled":
            candidates = CandidateSampler(prepared.said.token_counts, args.num_negatives, args.seed)
        self.batches = self._make_batches(
            prepared.train, prepared.train_target, args.gradient_accumulation_steps, args.seed,
            and_context=args.context_weight > 0, noise=noise, candidates=candidates, teacher_vectors=teacher_vectors,
            counts_sentences=bool(config.attention_penalty),
        )  # fmt: skip
        # Held-out texts without a context are found now, not at the end of the run.
        self.validation_batches = self._make_batches(prepared.validation, prepared.validation_target)
        self.steps_per_epoch = self.batches.plan.num_steps
        self.total_steps = args.max_steps or max(1, math.ceil(args.epochs * self.steps_per_epoch))

    def _make_batches(
        self,
        store: TokenStore,
        target: TokenStore | None = None,
        gradient_accumulation_steps: int = 1,
        seed: int = 0,
        and_context: bool = False,
        **options: Any,
    ) -> MicroBatches:
        """Batches of a store, and of its translations where there are any, for the run's objective; `and_context` has
        the words after each sentence as a second target."""
        args = self.args
        place = {"rank": self.accelerator.process_index, "world_size": self.world_size, **options}
        words = self.model.config.num_context_words
        if target is not None:
            sentences: Sentences = PairedSentences(store, target)
        elif and_context:
            sentences = SentencesAndContext(store, args.min_tokens, args.max_tokens, words)
        elif args.is_of_context:
            sentences = ContextSentences(store, args.objective, args.min_tokens, args.max_tokens, words)
        else:
            sentences = Sentences(store)
        plan = BatchPlan(sentences.costs(), args.batch_tokens, gradient_accumulation_steps, seed)
        return MicroBatches(sentences, plan, **place)

    def _train(self, terminated: threading.Event) -> None:
        args, state = self.args, self.state
        log = _StepLog()
        take_time = self._start_clocks()
        # A run that had ended by time or by early stopping makes no further step.
        self.stop_reason = self._agree_to_stop(terminated)
        if self.stop_reason:
            return
        bar = tqdm(total=self.total_steps, initial=state["step"], desc="train", disable=not self.is_main, unit="step")
        begin = time.perf_counter()
        for epoch, step_in_epoch, micro_batches, num_targets in self._steps():
            loss = self._step(micro_batches, num_targets)
            state["step"] += 1
            state["tokens"] += num_targets
            bar.update()
            log.add(state["step"], epoch, step_in_epoch, loss)
            must_save = False
            checks = self.device.type == "cpu" or state["step"] % args.log_steps == 0
            if checks:
                self._check_losses(log)
            state["step_seconds"] += time.perf_counter() - begin
            if not state["flops_per_token"]:
                state["flops_per_token"] = self._count_flops_per_token(micro_batches)
            take_time()
            if state["step"] % args.log_steps == 0:
                self._log(bar)
            if args.eval_steps and state["step"] % args.eval_steps == 0 and state["step"] < self.total_steps:
                must_save = self._evaluate_during_training()
                take_time()
            if checks:
                self.stop_reason = self._agree_to_stop(terminated)
            at_end = state["step"] >= self.total_steps or self.stop_reason not in ("", "terminated")
            if must_save or self.stop_reason or at_end or state["step"] % args.checkpoint_steps == 0:
                self._check_losses(log)
                if at_end:
                    self._log(bar)
                self._save()
                take_time()
            if self.stop_reason or at_end:
                break
            # What follows is the wait for the next batch, which is part of its step.
            begin = time.perf_counter()
        bar.close()

    def _start_clocks(self) -> Callable[[], None]:
        """A function that puts the seconds of all starts of the run into its state: by the clock, and of the processor
        in this process, which other work beside it changes little."""
        state, clocks = self.state, {"seconds": time.perf_counter, "cpu_seconds": time.process_time}
        begins = {name: clock() - state.get(name, 0.0) for name, clock in clocks.items()}

        def take_time() -> None:
            state.update({name: clock() - begins[name] for name, clock in clocks.items()})

        return take_time

    def _steps(self) -> Iterator[tuple[int, int, list[dict[str, torch.Tensor]], int]]:
        """From the run's position to its end: (epoch, step in the epoch, micro batches, targets of the global step)."""
        position = self.state["step"]
        if position >= self.total_steps:
            return
        epoch, start = divmod(position, self.steps_per_epoch)
        while True:
            for step, micro_batches, num_targets in self.batches.iterate(epoch, start):
                yield epoch, step, micro_batches, num_targets
            epoch, start = epoch + 1, 0

    def _step(self, micro_batches: list[dict[str, torch.Tensor]], num_targets: int) -> torch.Tensor:
        """One optimizer step; returns this process's parts of the mean loss per target token and of the means per
        sentence that `self.side_losses` names."""
        args = self.args
        learning_rate = args.learning_rate * self._schedule()
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        # Dropout is a function of (seed, step, process), so a resumed run draws what it would have drawn.
        torch.manual_seed(_step_seed(args.seed, self.state["step"], self.accelerator.process_index))
        totals = torch.zeros(1 + len(self.side_losses), device=self.device)
        # One autocast region for all micro batches: weights are cast once a step.
        with self._autocast():
            for index, batch in enumerate(micro_batches):
                batch = {name: tensor.to(self.device, non_blocking=True) for name, tensor in batch.items()}
                batch = feed_decoder(self.model, batch, args.decoder_inputs)
                is_last = index == len(micro_batches) - 1
                synchronise = contextlib.nullcontext() if is_last else self.accelerator.no_sync(self.wrapped)
                with synchronise:
                    output = self.wrapped(**batch, num_items_in_batch=num_targets)
                    # Gradients are averaged over processes; the loss is already divided by all targets.
                    (output.loss * self.world_size).backward()
                parts = [output.loss, *(output.losses[name] for name in self.side_losses)]
                totals += torch.stack([part.detach() for part in parts])
        if args.max_grad_norm and self.has_sparse_gradients:
            clip_gradients(self.trained, args.max_grad_norm)
        elif args.max_grad_norm:
            # Accelerate knows a sharded model by all of its parameters.
            wrapped: Any = self.wrapped
            clipped = list(wrapped.parameters()) if self.is_sharded else self.trained
            self.accelerator.clip_grad_norm_(clipped, args.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return totals

    def _autocast(self) -> contextlib.AbstractContextManager:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.use_bf16)

    def _schedule(self) -> float:
        """The factor of the learning rate at the present step."""
        args, step = self.args, self.state["step"]
        if step < args.warmup_steps:
            return (step + 1) / args.warmup_steps
        progress = (step - args.warmup_steps) / max(1, self.total_steps - args.warmup_steps)
        if args.max_minutes:
            progress = max(progress, self.agreed_seconds / (60 * args.max_minutes))
        if args.max_training_tokens:
            progress = max(progress, self.state["tokens"] / args.max_training_tokens)
        progress = min(1.0, progress)
        if args.lr_schedule == "linear":
            return 1.0 - progress
        if args.lr_schedule == "cosine":
            return 0.5 * (1.0 + math.cos(math.pi * progress))
        return 1.0

    def _check_losses(self, log: _StepLog) -> None:
        """Stops at a loss that is no number, with what is needed to look into it."""
        values = log.take(self.accelerator)
        for entry, losses in values:
            value = losses[0]
            if math.isfinite(value):
                self.state["unlogged_losses"].append(losses)
                continue
            step, epoch, step_in_epoch = entry
            rows = self.batches.sentences.in_store(np.concatenate(self.batches.plan.epoch(epoch).rows(step_in_epoch)))
            shown = " ".join(map(str, rows[:20])) + (" ..." if len(rows) > 20 else "")
            latest = self.checkpoints.latest()
            raise FloatingPointError(
                f"The loss is {value} at step {step} (epoch {epoch}). Sentences of the batch (indices in "
                f"{self.prepared.train.folder}): {shown}. Last good checkpoint: {latest or 'none'}. "
                "Lower --learning_rate, lengthen --warmup_steps or use --precision fp32, and run again."
            )

    def _log(self, bar: Any) -> None:
        losses = self.state["unlogged_losses"]
        if not losses:
            return
        rate = self.state["tokens"] / max(self.state["step_seconds"], 1e-9)
        record = {
            "step": self.state["step"],
            **dict(zip(("loss", *self.side_losses), np.mean(losses, axis=0).tolist(), strict=True)),
            "learning_rate": self.optimizer.param_groups[0]["lr"],
            "tokens": self.state["tokens"],
            "tokens_per_second": round(rate, 1),
            "minutes": round(self.state["seconds"] / 60, 3),
        }
        losses.clear()
        bar.set_postfix(loss=f"{record['loss']:.3f}", tok_s=f"{rate:,.0f}")
        self._record(record)

    def _record(self, record: dict[str, Any]) -> None:
        """Appends to metrics.jsonl and to the trackers."""
        if self.is_main:
            with open(self.folder / METRICS_FILE, "a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        if self.args.report_to:
            self.accelerator.log({k: v for k, v in record.items() if k != "step"}, step=self.state["step"])

    def _trim_metrics(self) -> None:
        """Drops the records of steps that a resumed run will do again."""
        path = self.folder / METRICS_FILE
        if self.is_main and path.is_file():
            lines = path.read_text(encoding="utf-8").splitlines()
            # A summary is of the end of a run, which is still to come.
            kept = [line for line in lines if _step_of(line) <= self.state["step"] and '"stopped_by"' not in line]
            with replacing_file(path) as file:
                file.write("".join(line + "\n" for line in kept))

    def evaluate(self) -> dict[str, float]:
        """Teacher-forced loss and accuracy on the held-out sentences, with the full softmax."""
        self.wrapped.eval()
        totals = torch.zeros(3, dtype=torch.float64)
        forward = self.wrapped if self.is_sharded else self.model
        with torch.no_grad(), self._autocast():
            for _, batch, _ in self.validation_batches.sequential():
                batch = {k: v.to(self.device) for k, v in batch.items()}
                # Processes that share the weights must make as many forward passes as each other.
                totals += teacher_forced_counts(forward, batch, splits=not self.is_sharded)
        if self.world_size > 1:
            totals = self.accelerator.reduce(totals.to(self.device), "sum")
        loss, correct, count = totals.tolist()
        self.wrapped.train()
        return {"validation_loss": loss / count, "validation_accuracy": correct / count}

    def _evaluate_during_training(self) -> bool:
        """Scores the model; whether it must be saved, because the best weights must be on disk to be found again."""
        args, state = self.args, self.state
        scores = self.evaluate()
        is_best = scores["validation_accuracy"] > state["best_accuracy"]
        if is_best:
            state.update(best_accuracy=scores["validation_accuracy"], best_step=state["step"], bad_evaluations=0)
        else:
            state["bad_evaluations"] += 1
        self.say(
            f"step {state['step']}: validation loss {scores['validation_loss']:.3f}, "
            f"accuracy {scores['validation_accuracy']:.4f}"
        )
        if self.prepared.references and not self.is_sharded:
            scores["validation_bleu"] = self.translation_bleu()
            self.say(f"    BLEU of greedy translations {scores['validation_bleu']:.1f}")
        for original, said in self.sample(args.sample_sentences):
            self.say(f"    {original}\n -> {said}")
        self._record({"step": state["step"], **scores})
        return is_best and args.early_stopping_patience > 0

    def translation_bleu(self) -> float:
        """Cased BLEU (sacrebleu's 13a) of the greedy translations of the held-out texts."""
        prepared = self.prepared
        self.model.eval()
        with self._autocast():
            said = reconstruct(self.model, prepared.tokenizer, prepared.validation_texts)
        self.model.train()
        hypotheses = prepared.said_by.batch_decode(said, skip_special_tokens=True)
        return score_texts(hypotheses, prepared.references, "13a", rouge=False).bleu

    def sample(self, number: int) -> list[tuple[str, str]]:
        """The first held-out sentences and their greedy reconstructions."""
        texts = self.prepared.validation_texts[:number]
        if not texts or self.is_sharded:
            return []
        self.model.eval()
        with self._autocast():
            said = reconstruct(self.model, self.prepared.tokenizer, texts)
        self.model.train()
        return list(zip(texts, self.prepared.said_by.batch_decode(said), strict=True))

    def _agree_to_stop(self, terminated: threading.Event) -> str:
        """Whether the run should stop after this step, and why; all processes get the same answer."""
        args, state = self.args, self.state
        reason = 0
        if terminated.is_set():
            reason = 1
        elif args.max_minutes and state["seconds"] >= 60 * args.max_minutes:
            reason = 2
        elif args.early_stopping_patience and state["bad_evaluations"] >= args.early_stopping_patience:
            reason = 3
        elif args.max_training_tokens and state["tokens"] >= args.max_training_tokens:
            reason = 4
        if self.world_size > 1:
            own = torch.tensor([[reason, state["seconds"]]], dtype=torch.float32, device=self.device)
            reasons, seconds = self.accelerator.gather(own).T.tolist()
            reason = int(min(filter(None, reasons), default=0))
            # The schedule reads the time, and all processes must take the same learning rate.
            self.agreed_seconds = max(seconds)
        else:
            self.agreed_seconds = state["seconds"]
        return ("", "terminated", "time", "no better accuracy", "tokens")[reason]

    def _save(self) -> None:
        self.checkpoints.save(self.stateful_model, self.optimizer, self.state, self.is_main)
        self.accelerator.wait_for_everyone()

    def _count_flops_per_token(self, micro_batches: list[dict[str, torch.Tensor]]) -> float:
        tokens = sum(
            int((batch[name] != IGNORE_INDEX).sum())
            for batch in micro_batches
            for name in ("labels", "previous_targets")
            if name in batch
        )
        if self.is_sharded:
            return 0.0
        return sum(count_flops(self.model, batch, self._loss) for batch in micro_batches) / max(1, tokens)

    def _loss(self, model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return TrainingModel(model, self.objectives)(**batch, num_items_in_batch=1).loss

    def _finish(self) -> dict[str, Any]:
        """Final scores, the checkpoint folder and the summary."""
        args, state, prepared = self.args, self.state, self.prepared
        synchronize(self.device)
        summary: dict[str, Any] = {
            "steps": state["step"],
            "tokens": state["tokens"],
            "minutes": round(state["seconds"] / 60, 2),
            "cpu_minutes": round(state.get("cpu_seconds", 0.0) / 60, 2),
            "stopped_by": self.stop_reason or "steps",
        }
        if state["step_seconds"]:
            rate = state["tokens"] / state["step_seconds"]
            summary["tokens_per_second"] = round(rate, 1)
            summary["flops_per_token"] = state["flops_per_token"]
            summary["matrix_rate_flops"] = self.matrix_rate
            summary["share_of_matrix_rate"] = rate / self.world_size * state["flops_per_token"] / self.matrix_rate
        summary["peak_memory_bytes"] = peak_memory_bytes(self.device)
        summary.update(self.evaluate())
        if not self.is_sharded and prepared.references:
            summary["validation_bleu"] = self.translation_bleu()
        elif not self.is_sharded and prepared.validation_texts:
            self.model.eval()
            with self._autocast():
                said = reconstruct(
                    self.model, prepared.tokenizer, prepared.validation_texts, show_progress=self.is_main
                )
            scores = score_reconstructions(prepared.tokenizer, prepared.validation_texts, said)
            summary.update(validation_bleu=scores.bleu, validation_exact_match=scores.exact_match)
        self._record({"step": state["step"], **summary})
        folder = self.folder / "model"
        weights = self.accelerator.get_state_dict(self.wrapped) if self.is_sharded else None
        if self.is_main:
            model = self.model
            if weights is not None:
                model = type(model)(model.config)
                model.load_state_dict({name.removeprefix("model."): weight for name, weight in weights.items()})
            model.eval()
            # A vector does not tell how long its text was, but no text of this run was longer.
            longest = int(prepared.said.lengths.max())
            if args.reads_context:
                # The store holds longer lines, which are context alone.
                longest = min(longest, args.max_tokens + 1)
            longest = decoding_bound(longest)
            model.generation_config.max_new_tokens = max(LEAST_OF_EMBEDDING, longest)
            normalize = None if args.normalize == "none" else args.normalize
            save_checkpoint(
                model, prepared.tokenizer, folder, target_tokenizer=prepared.target_tokenizer, normalize=normalize,
                training_args={**args.to_share(), "corpus_report": str(prepared.train.report), "results": summary},
            )  # fmt: skip
            self._print_summary(summary, folder)
            if args.showcase:
                show(folder, prepared.validation_texts)
        return summary

    def _print_summary(self, summary: dict[str, Any], folder: Path) -> None:
        lines = [f"{summary['steps']:,} steps, {summary['tokens']:,} tokens, {summary['minutes']:.1f} minutes"]
        if "tokens_per_second" in summary:
            lines.append(
                f"{summary['tokens_per_second']:,.0f} tokens/s; "
                f"{100 * summary['share_of_matrix_rate']:.0f} % of the measured matrix rate "
                f"({summary['matrix_rate_flops'] / 1e12:.2f} TFLOP/s)"
            )
        lines.append(f"peak memory {summary['peak_memory_bytes'] / 2**30:.2f} GiB")
        lines.append(
            f"held-out: loss {summary['validation_loss']:.3f}, accuracy {summary['validation_accuracy']:.4f}"
            + (f", greedy BLEU {summary['validation_bleu']:.1f}" if "validation_bleu" in summary else "")
            + (
                f", word for word {summary['validation_exact_match']:.1%}"
                if "validation_exact_match" in summary
                else ""
            )
        )
        lines.append(f"saved to {folder}")
        self.say("\n".join(lines))

    def _claim_folder(self) -> None:
        """Makes the output folder, or recognises the run in it."""
        ours = {k: v for k, v in self.args.to_dict().items() if k not in _FREE_ON_RESUME}
        if self.is_main:
            claim_folder(self.folder, ours, self.args.overwrite)
        self.accelerator.wait_for_everyone()

    def _end(self) -> None:
        self.accelerator.wait_for_everyone()
        self.accelerator.end_training()

    def say(self, text: str) -> None:
        """Prints on the main process, above the progress bar."""
        if self.is_main:
            tqdm.write(text, file=sys.stdout)
            sys.stdout.flush()


class _StepLog:
    """The losses of each step, kept on the device until somebody must look at them."""

    def __init__(self) -> None:
        self.waiting: list[tuple[tuple[int, int, int], torch.Tensor]] = []

    def add(self, step: int, epoch: int, step_in_epoch: int, loss: torch.Tensor) -> None:
        self.waiting.append(((step, epoch, step_in_epoch), loss))

    def take(self, accelerator: Any) -> list[tuple[tuple[int, int, int], list[float]]]:
        """The waiting losses, summed over processes, as numbers."""
        if not self.waiting:
            return []
        entries = [entry for entry, _ in self.waiting]
        losses = accelerator.reduce(torch.stack([loss for _, loss in self.waiting]), "sum")
        self.waiting.clear()
        return list(zip(entries, losses.tolist(), strict=True))


@contextlib.contextmanager
def _termination_flag() -> Iterator[threading.Event]:
    """An event that SIGTERM and the first Ctrl-C set instead of ending the process."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    previous: dict[int, Any] = {}

    def on_signal(number: int, frame: Any) -> None:
        event.set()
        # A second signal ends the process as usual.
        signal.signal(number, previous[number])

    for caught in (signal.SIGTERM, signal.SIGINT):
        previous[caught] = signal.signal(caught, on_signal)
    try:
        yield event
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _step_seed(seed: int, step: int, rank: int) -> int:
    return int(np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint64)[0] >> 1)


def _step_of(line: str) -> int:
    try:
        return int(json.loads(line)["step"])
    except (json.JSONDecodeError, KeyError, TypeError):
        return sys.maxsize
