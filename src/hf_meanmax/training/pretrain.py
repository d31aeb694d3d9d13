"""Pretraining: one training loop for every model family."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
from accelerate import PartialState
from tqdm.auto import tqdm

from hf_meanmax.checkpoint.folder import SETTINGS_FILE, save_checkpoint
from hf_meanmax.checkpoint.location import checkpoint_folder
from hf_meanmax.data import StoredTexts
from hf_meanmax.files import Json, json_digest, naming_failed_writes, sole_writer
from hf_meanmax.hardware import (
    measure_matrix_rate,
    prepare_training_on_cpu,
    return_freed_memory,
    synchronize,
    use_all_cores,
    uses_bf16,
)
from hf_meanmax.inference.embedder import fit_standardization, load_embedder
from hf_meanmax.inference.fingerprints import model_fingerprints
from hf_meanmax.metrics import counted
from hf_meanmax.modeling.configuration_base import LatentConfig
from hf_meanmax.modeling.generation import MIN_TOKENS_FROM_TEXT, decoding_bound
from hf_meanmax.modeling.modeling_embedding_decoder import EmbeddingDecoderForGeneration
from hf_meanmax.objectives.decoder_inputs import feed_decoder
from hf_meanmax.processes import (
    check_agreement,
    end_processes,
    errors_shared,
    main_process_first,
    naming_lost_processes,
    of_main_process,
)
from hf_meanmax.progress import progress_bar

from .accelerator import exact_sums, is_sharded, make_accelerator
from .batches import make_run_batches, sentences_to_learn
from .checkpoints import CHECKPOINTS, Checkpoints, check_run_folder, claim_folder
from .metrics_log import MetricsLog, StepLosses
from .model import check_start, make_config, make_model, make_objectives
from .optimization import Optimization
from .preparation import Prepared, prepare
from .schedule import Schedule
from .settings import PretrainArguments
from .showcase import show
from .stopping import LIMITS, NO_BETTER, TERMINATED, Termination, agree_to_stop, termination_flag
from .summary import count_flops_per_token, format_summary, summarize_run
from .teacher import TeacherVectors, teacher_vectors
from .validation import Validation
from .vocabulary import prepare_word_vectors

# Settings that a resumed run may change: they affect its length, outputs and speed, not its training steps.
_FREE_ON_RESUME = {
    "max_steps", "epochs", "max_minutes", "max_training_tokens", "early_stopping_patience", "log_steps", "eval_steps",
    "sample_sentences", "ddp_timeout", "checkpoint_minutes",
    "checkpoint_steps", "keep_checkpoints", "overwrite", "report_to", "showcase", "normalize", "cache_dir",
    "output_dir", "recipe", "attention",
}  # fmt: skip


def pretrain(args: PretrainArguments) -> Json:
    """Trains a model with the settings `args` and writes `<output_dir>/model`; resumes an interrupted run.

    Returns:
        The summary: steps, tokens, minutes, tokens/s, share of the matrix rate, validation scores.

    Raises:
        ValueError: for settings or data that cannot be trained on.
        FloatingPointError: if the loss is NaN or infinite.
        FileExistsError: if `output_dir` holds a run with other settings, or something else.
        BlockingIOError: if another process trains in `output_dir`.
        ConnectionError: if another process of the run ended or did not answer.
        OSError: if a result cannot be written.
    """
    with naming_lost_processes(timedelta(seconds=args.ddp_timeout)), ExitStack() as stack:
        run = Run(args)
        with errors_shared(run.processes):
            if run.is_main:
                stack.enter_context(sole_writer(run.folder))
        stack.enter_context(naming_failed_writes(run.folder))
        return run.execute()


class Run:
    """A training run: settings, data, model, objectives, optimizer, loop, save."""

    prepared: Prepared

    def __init__(self, args: PretrainArguments):
        self.args = args
        self.folder = Path(args.output_dir)
        self.accelerator = make_accelerator(args)
        self.processes = PartialState()
        self.device = self.accelerator.device
        self.world_size = self.accelerator.num_processes
        self.is_main = self.accelerator.is_main_process
        self.is_sharded = is_sharded(self.accelerator)
        if self.device.type == "cpu":
            use_all_cores(self.world_size)
            # Following sentences and noisy copies have any length, so their batch sizes do not recur.
            prepare_training_on_cpu(sizes_recur=args.contrastive == "none")
        self.use_bf16 = uses_bf16(args.precision, self.device)
        self.checkpoints = Checkpoints(
            self.folder / CHECKPOINTS, args.keep_checkpoints, prefix="model." if self.is_sharded else ""
        )
        self.log = MetricsLog(self.folder, self.accelerator, bool(args.report_to))
        self.state: Json = {
            "step": 0, "tokens": 0, "seconds": 0.0, "cpu_seconds": 0.0, "best_step": None, "best_accuracy": -1.0,
            "bad_evaluations": 0, "unlogged_losses": [], "step_seconds": 0.0, "flops_per_token": 0.0,
        }  # fmt: skip
        self.agreed_seconds = 0.0
        # Seconds of the run at the last checkpoint; infinite until the processes agree on them.
        self.saved_at = math.inf
        self.stop_reason = ""

    def execute(self) -> Json:
        """Prepares, trains, evaluates and exports."""
        args = self.args
        with errors_shared(self.processes):
            # The older run is removed only after all inputs of the new one have been found.
            overwrites = of_main_process(self.processes, args.overwrite and (self.folder / SETTINGS_FILE).is_file())
            if not overwrites:
                self._claim_folder()
            elif self.is_main:
                check_run_folder(self.folder)
            self._prepare()
            self._build()
            if overwrites:
                self._claim_folder()
            self._resume()
            if args.report_to:
                self.accelerator.init_trackers("hf_meanmax")
        self.matrix_rate = measure_matrix_rate(self.device, torch.bfloat16 if self.use_bf16 else torch.float32)
        start = self.state["step"]
        with termination_flag() as terminated:
            self._train(terminated)
        if self.stop_reason == TERMINATED:
            option = " without --overwrite" if args.overwrite else ""
            self.print(f"terminated at step {self.state['step']}; the same command{option} resumes")
            self._end()
            return {"step": self.state["step"], "terminated_by": terminated.number}
        if start == self.state["step"]:
            self.print("this run had ended; it goes on where the limit that ended it is larger")
        if args.early_stopping_patience and self._best_is_older():
            self.checkpoints.load_weights(self._best_checkpoint(), self.optimization.stateful_model)
            self.print(f"exporting the best checkpoint, step {self.state['best_step']}")
        with errors_shared(self.processes):
            summary = self._finish()
        self._end()
        return summary

    def _prepare(self) -> None:
        """Prepares the data, and checks that it is the same in all processes."""
        with main_process_first(self.processes):
            self.prepared = prepare(self.args, show_progress=self.is_main)
        check_agreement(self.processes, self.prepared.contents(), "Give every machine the same texts and tokenizer.")
        self.print(f"training corpus: {self.prepared.train.report}")
        if self.prepared.train_target is not None:
            self.print(f"its translations: {self.prepared.train_target.report}")
        self.print(f"held out: {counted(len(self.prepared.validation), 'sentence')} for validation")
        self.state["learnt_from"] = self.prepared.fingerprint()

    def _resume(self) -> None:
        """Continues from the latest checkpoint, if there is one."""
        latest = self.checkpoints.latest()
        check_agreement(
            self.processes, {"latest checkpoint": latest and latest.name},
            "`output_dir` must be on a disk that all machines share.",
        )  # fmt: skip
        if latest is not None:
            saved = self.checkpoints.load(latest, self.optimization.stateful_model, self.optimization.optimizers)
            self.state.update(saved)
            if self.args.early_stopping_patience and not self._best_checkpoint().is_dir():
                # Without early stopping the best weights need not have been saved.
                self.state.update(best_step=None, best_accuracy=-1.0, bad_evaluations=0)
            self.print(f"resumed from {latest}")
        elif self.log.path.is_file():
            self.print("no checkpoint had been saved; training starts anew")
        self.log.trim(self.state["step"])

    def _best_checkpoint(self) -> Path:
        return self.checkpoints.path(self.state["best_step"] or 0)

    def _best_is_older(self) -> bool:
        """Whether an earlier checkpoint scored at least as well as the weights at the end."""
        if self.state["best_step"] is None or self.state["best_step"] == self.state["step"]:
            return False
        if self.stop_reason == NO_BETTER:
            return True
        return _quality(self.validation.evaluate()) <= float(self.state["best_accuracy"])

    def _build(self) -> None:
        """Builds model, objectives, optimizers, batches and learning rate schedule."""
        args, prepared = self.args, self.prepared
        if args.reads_context:
            # Texts without one fail here, before word vectors are trained and a teacher encodes for hours.
            sentences_to_learn(args, prepared.train, prepared.train_target, 1, args.adds_context)
        teacher = None
        if args.reads_vectors:
            teacher = load_embedder(args.frozen_encoder, args.teacher_prompt or args.embedder_prompt, self.device)
        self.state["teacher"] = None if teacher is None else json_digest(model_fingerprints(teacher))
        if not args.overwrite:
            self.checkpoints.check_learnt_from(self.state)
        with main_process_first(self.processes):
            words = prepare_word_vectors(args, prepared.tokenizer, prepared.train, self.is_main, prepared.word_vectors)
        config = make_config(args, prepared, words, teacher, self.print)
        vectors: dict[str, TeacherVectors] = {}
        if teacher is not None:
            # An unsuitable initial model fails here, before a teacher encodes for hours.
            check_start(args, config)
            vectors = {
                name: teacher_vectors(args, texts, teacher, self.processes, self.is_main)
                for name, texts in self._sources(config).items()
            }
        # After the teacher is loaded, which may draw random numbers.
        torch.manual_seed(args.seed)
        self.model = make_model(args, prepared, config, words, self.device, self.print)
        if self.model.can_generate():
            self.model.generation_config.max_new_tokens = self._longest_decoding()
        if isinstance(self.model, EmbeddingDecoderForGeneration) and not args.initial_model:
            fit_standardization(
                self.model.encoder.standardization, vectors["train"], self.model.config.normalize_embeddings
            )
        trained = sum(parameter.numel() for parameter in self.model.parameters() if parameter.requires_grad)
        self.print(
            f"{type(self.model).__name__}: {sum(p.numel() for p in self.model.parameters()):,} parameters, "
            f"{trained:,} trained; {self.world_size} process(es) on {self.device.type}, "
            f"{'bf16' if self.use_bf16 else 'fp32'}"
        )
        self.objectives, self.side_losses = make_objectives(args, config)
        if self.is_sharded:
            # Each process keeps a shard of weights that it initialised itself, so all must have the same.
            sums = exact_sums(self.model.state_dict())
            check_agreement(self.processes, sums, "Give every machine the same word vectors and initial model.")
        self.optimization = Optimization(self.accelerator, self.model, self.objectives, args)
        # Made now, so that held-out texts without a context fail before the training.
        self.batches, held_out = make_run_batches(
            args, prepared, self.model, vectors, self.accelerator.process_index, self.world_size, self.print
        )
        self.validation = Validation(
            accelerator=self.accelerator, model=self.model, wrapped=self.optimization.wrapped,
            is_sharded=self.is_sharded, batches=held_out, prepared=prepared, args=args, use_bf16=self.use_bf16,
            vectors=vectors.get("validation"), terms=() if config.has_decoder else self.side_losses,
        )  # fmt: skip
        self.steps_per_epoch = self.batches.plan.num_steps
        self.total_steps = args.max_steps or max(1, math.ceil(args.epochs * self.steps_per_epoch))
        self.schedule = Schedule(args, self.total_steps)

    def _sources(self, config: LatentConfig) -> dict[str, StoredTexts]:
        """The texts that the teacher or embedder encodes. For a text encoder with a decoder, vectors of held-out texts
        only serve the reported closeness to the teacher."""
        are_shown = self.prepared.validation_texts and not self.is_sharded
        is_read = are_shown or not (config.has_decoder and config.reads_text)
        return {name: texts for name, texts in self.prepared.sources.items() if name != "validation" or is_read}

    def _train(self, terminated: Termination) -> None:
        args, state = self.args, self.state
        losses = StepLosses()
        take_time = self._start_clocks()
        # A run that had ended by time or by early stopping makes no further step.
        self._agree_to_stop(terminated)
        if self.stop_reason:
            return
        expected = self._expected_steps()
        with progress_bar(
            total=expected, initial=state["step"], desc="train", disable=not self.is_main, unit="step"
        ) as bar:
            begin = time.perf_counter()
            for epoch, step_in_epoch, micro_batches, num_targets in self._steps():
                loss = self._step(micro_batches, num_targets)
                state["step"] += 1
                state["tokens"] += num_targets
                losses.add(state["step"], epoch, step_in_epoch, loss)
                must_save = False
                checks = self.device.type == "cpu" or state["step"] % args.log_steps == 0
                if checks:
                    self._check_losses(losses)
                state["step_seconds"] += time.perf_counter() - begin
                if not state["flops_per_token"] and not self.is_sharded:
                    state["flops_per_token"] = count_flops_per_token(self.model, self.objectives, micro_batches)
                take_time()
                bar.total = self._expected_steps()
                bar.update()
                if state["step"] % args.log_steps == 0:
                    self._log(bar)
                if self.device.type == "cpu":
                    return_freed_memory(state["step"])
                if args.eval_steps and state["step"] % args.eval_steps == 0 and state["step"] < self.total_steps:
                    must_save = self._evaluate_during_training()
                    take_time()
                if checks or self.world_size == 1:
                    self._agree_to_stop(terminated)
                    self.saved_at = min(self.saved_at, self.agreed_seconds)
                    must_save |= 0 < 60 * args.checkpoint_minutes <= self.agreed_seconds - self.saved_at
                at_end = state["step"] >= self.total_steps or self.stop_reason not in ("", TERMINATED)
                if must_save or self.stop_reason or at_end or state["step"] % args.checkpoint_steps == 0:
                    self._check_losses(losses)
                    if at_end:
                        bar.total = state["step"]
                        self._log(bar)
                    self._save()
                    take_time()
                if self.stop_reason or at_end:
                    break
                # From here on the wait for the next batch counts, as part of its step.
                begin = time.perf_counter()

    def _expected_steps(self) -> int:
        """The expected number of steps at the end of the run; all steps until its pace is known."""
        return self.schedule.expected_steps(self.state["step"], self.state["seconds"], self.state["tokens"])

    def _agree_to_stop(self, terminated: Termination) -> None:
        self.stop_reason, self.agreed_seconds = agree_to_stop(
            self.args, self.accelerator, self.state, terminated.is_set()
        )

    def _start_clocks(self) -> Callable[[], None]:
        """Returns a function that writes the seconds of the run, over all its starts, into its state: wall-clock time,
        and CPU time of this process, which other work on the machine changes little."""
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
        """One optimizer step; returns this process's share of the loss, then of each of `self.side_losses`."""
        args, wrapped = self.args, self.optimization.wrapped
        self.learning_rate = self.schedule.learning_rate(self.state["step"], self.agreed_seconds, self.state["tokens"])
        # Dropout is a function of (seed, step, process), so a resumed run draws what it would have drawn.
        torch.manual_seed(_step_seed(args.seed, self.state["step"], self.accelerator.process_index))
        totals = torch.zeros(1 + len(self.side_losses), device=self.device)
        # One autocast region for all micro batches: weights are cast once a step.
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.use_bf16):
            for index, batch in enumerate(micro_batches):
                batch = {name: tensor.to(self.device, non_blocking=True) for name, tensor in batch.items()}
                batch = feed_decoder(self.model, batch, args.decoder_inputs)
                is_last = index == len(micro_batches) - 1
                synchronise = nullcontext() if is_last else self.accelerator.no_sync(wrapped)
                with synchronise:
                    output = wrapped(**batch, num_items_in_batch=num_targets)
                    # Gradients are averaged over processes; the loss is already divided by all targets.
                    (output.loss * self.world_size).backward()
                parts = [output.loss, *(output.losses[name] for name in self.side_losses)]
                totals += torch.stack([part.detach() for part in parts])
        self.optimization.step(self.learning_rate)
        return totals

    def _check_losses(self, losses: StepLosses) -> None:
        """Stops at a NaN or infinite loss, with an error that names the step and the sentences of the batch."""
        for entry, parts in losses.take(self.accelerator):
            value = parts[0]
            if math.isfinite(value):
                self.state["unlogged_losses"].append(parts)
                continue
            step, epoch, step_in_epoch = entry
            rows = self.batches.sentences.in_store(np.concatenate(self.batches.plan.epoch(epoch).rows(step_in_epoch)))
            shown = " ".join(map(str, rows[:20])) + (" ..." if len(rows) > 20 else "")
            remedy = self.checkpoints.remedy("Lower --learning_rate, lengthen --warmup_steps or use --precision fp32,")
            with errors_shared(self.processes):
                raise FloatingPointError(
                    f"The loss is {value} at step {step} (epoch {epoch}). Sentences of the batch (indices in "
                    f"{self.prepared.train.folder}): {shown}. {remedy}"
                )

    def _log(self, bar: tqdm) -> None:
        losses = self.state["unlogged_losses"]
        if not losses:
            return
        rate = self.state["tokens"] / max(self.state["step_seconds"], 1e-9)
        record = {
            "step": self.state["step"],
            **dict(zip(("loss", *self.side_losses), np.mean(losses, axis=0).tolist(), strict=True)),
            "learning_rate": self.learning_rate,
            "tokens": self.state["tokens"],
            "tokens_per_second": round(rate, 1),
            "minutes": round(self.state["seconds"] / 60, 3),
        }
        losses.clear()
        bar.set_postfix(loss=f"{record['loss']:.3f}", tok_s=f"{rate:,.0f}", refresh=sys.stderr.isatty())
        self.log.record(record)

    def _evaluate_during_training(self) -> bool:
        """Scores the model; returns whether to save it, since early stopping needs the best weights on disk."""
        args, state = self.args, self.state
        scores = self.validation.evaluate()
        quality = _quality(scores)
        is_best = state["best_step"] is None or quality > state["best_accuracy"]
        if is_best:
            state.update(best_accuracy=quality, best_step=state["step"], bad_evaluations=0)
        else:
            state["bad_evaluations"] += 1
        accuracy = f", accuracy {scores['validation_accuracy']:.4f}" if "validation_accuracy" in scores else ""
        self.print(f"step {state['step']}: validation loss {scores['validation_loss']:.3f}{accuracy}")
        if self.prepared.references and self.validation.generates:
            scores["validation_bleu"] = self.validation.translation_bleu()
            self.print(f"    BLEU of greedy translations {scores['validation_bleu']:.1f}")
        for original, reconstruction in self.validation.samples(args.sample_sentences):
            self.print(f"    {original}\n -> {reconstruction}")
        self.log.record({"step": state["step"], **scores})
        return is_best and args.early_stopping_patience > 0

    def _save(self) -> None:
        with errors_shared(self.processes):
            self.checkpoints.save(
                self.optimization.stateful_model, self.optimization.optimizers, self.state, self.is_main
            )
        self.saved_at = math.inf

    def _finish(self) -> Json:
        """Computes final scores, writes the checkpoint folder and returns the summary."""
        args, prepared = self.args, self.prepared
        synchronize(self.device)
        summary = summarize_run(self.state, self.stop_reason, self.device, self.world_size, self.matrix_rate)
        summary |= self.validation.evaluate() | self.validation.teacher_scores()
        summary |= self.validation.generated_scores(show_progress=self.is_main)
        self.log.record({"step": self.state["step"], **summary})
        folder = self.folder / "model"
        weights = self.accelerator.get_state_dict(self.optimization.wrapped) if self.is_sharded else None
        if not self.is_main:
            return summary
        model = self.model
        if weights is not None:
            model = type(model)(model.config)
            if model.can_generate():
                model.generation_config = self.model.generation_config
            model.load_state_dict({name.removeprefix("model."): weight for name, weight in weights.items()})
        model.eval()
        normalize = None if args.normalize == "none" else args.normalize
        save_checkpoint(
            model, prepared.tokenizer, folder, target_tokenizer=prepared.target_tokenizer, normalize=normalize,
            training_args={**args.to_share(), "corpus_report": str(prepared.train.report), "results": summary},
            like=checkpoint_folder(args.initial_model) if args.initial_model else None,
        )  # fmt: skip
        if self.stop_reason:
            done = f"{self.state['step']:,} of {counted(self.total_steps, 'step')}"
            self.print(f"ended by --{LIMITS[self.stop_reason]} after {done}")
        self.print(f"{format_summary(summary)}\nsaved to {folder}")
        if args.showcase:
            show(folder, prepared.validation_texts)
        return summary

    def _longest_decoding(self) -> int:
        """`max_new_tokens` when decoding from vectors, by the longest text of this run and of the runs before it."""
        longest = int(self.prepared.output_store.lengths.max())
        if self.args.reads_context:
            # The store holds longer lines, which only serve as context.
            longest = min(longest, self.args.max_tokens + 1)
        before = self.model.generation_config.max_new_tokens if self.args.initial_model else None
        return max(MIN_TOKENS_FROM_TEXT, int(decoding_bound(longest)), before or 0)

    def _claim_folder(self) -> None:
        """Creates the output folder, or checks that the run in it has the same settings."""
        ours = {k: v for k, v in self.args.to_dict().items() if k not in _FREE_ON_RESUME}
        with errors_shared(self.processes):
            if self.is_main:
                claim_folder(self.folder, ours, self.args.overwrite, self.args.defaults())

    def _end(self) -> None:
        self.accelerator.wait_for_everyone()
        self.accelerator.end_training()
        end_processes()

    def print(self, text: str) -> None:
        """Prints on the main process, above the progress bar."""
        if self.is_main:
            tqdm.write(text, file=sys.stdout)
            sys.stdout.flush()


def _quality(scores: dict[str, float]) -> float:
    """The score by which the best checkpoint is chosen: the decoder's accuracy, or without a decoder minus the loss."""
    return scores.get("validation_accuracy", -scores["validation_loss"])


def _step_seed(seed: int, step: int, rank: int) -> int:
    return int(np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint64)[0] >> 1)
