"""Scores of a model on the held-out texts, during a run and at its end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from accelerate import Accelerator

from hf_meanmax.cosines import paired_cosines
from hf_meanmax.data import MicroBatches
from hf_meanmax.evaluation.neighbors import shared_neighbors
from hf_meanmax.evaluation.reconstruction import score_reconstructions, teacher_forced_counts
from hf_meanmax.evaluation.text_scores import score_texts, tokenization_of
from hf_meanmax.inference.alignment import encode_rows
from hf_meanmax.inference.decode import generate_ids
from hf_meanmax.inference.reconstruct import reconstruct
from hf_meanmax.modeling.conditional_decoding import LatentForConditionalDecoding

from .preparation import Prepared
from .settings import PretrainArguments
from .teacher import TeacherVectors


@dataclass(kw_only=True)
class Validation:
    """Scores the model of a run on its held-out texts.

    Args:
        accelerator: of the run; every process must take part in each evaluation.
        model: the trained model.
        wrapped: the model as wrapped by Accelerate for training; if it is sharded, it makes the forward passes.
        is_sharded: whether the weights are sharded, so that nothing is generated.
        batches: of the held-out texts.
        prepared: the texts, their references and the tokenizers.
        args: the run's settings.
        use_bf16: whether the model computes in bf16.
        vectors: vectors of the texts: the inputs of a model without a text encoder, otherwise its teacher's vectors.
        terms: objectives of a model without a decoder whose losses are reported one by one.
    """

    accelerator: Accelerator
    model: LatentForConditionalDecoding
    wrapped: torch.nn.Module
    is_sharded: bool
    batches: MicroBatches
    prepared: Prepared
    args: PretrainArguments
    use_bf16: bool
    vectors: TeacherVectors | None = None
    terms: tuple[str, ...] = ()

    @property
    def generates(self) -> bool:
        """Whether texts are generated: there is a decoder, and this process has all of its weights."""
        return self.model.config.has_decoder and not self.is_sharded

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        self.wrapped.eval()
        with torch.autocast(self.accelerator.device.type, torch.bfloat16, enabled=self.use_bf16):
            try:
                yield
            finally:
                self.wrapped.train()

    def evaluate(self) -> dict[str, float]:
        """Teacher-forced loss and accuracy with the full softmax; without a decoder the objectives' mean loss over the
        sentences."""
        if not self.model.config.has_decoder:
            return self._evaluate_objectives()
        totals = torch.zeros(3, dtype=torch.float64)
        forward = self.wrapped if self.is_sharded else self.model
        with torch.no_grad(), self._evaluating():
            for _, batch in self.batches.sequential():
                batch = {name: tensor.to(self.accelerator.device) for name, tensor in batch.items()}
                # With sharded weights all processes must make the same number of forward passes.
                totals += teacher_forced_counts(forward, batch, splits=not self.is_sharded)
        if self.accelerator.num_processes > 1:
            totals = self.accelerator.reduce(totals.to(self.accelerator.device), "sum")
        loss, correct, count = totals.tolist()
        return {"validation_loss": loss / count, "validation_accuracy": correct / count}

    def _evaluate_objectives(self) -> dict[str, float]:
        names = ("loss", *self.terms)
        totals = torch.zeros(1 + len(names), device=self.accelerator.device)
        with torch.no_grad(), self._evaluating():
            if self.args.has_views and not self.args.has_noise:
                # Views differ by dropout alone, so each evaluation draws the same; training steps set their own seeds.
                torch.manual_seed(0)
                self.wrapped.train()
            for rows, batch in self.batches.sequential():
                batch = {name: tensor.to(self.accelerator.device) for name, tensor in batch.items()}
                # The loss of a batch is a sum over this process's rows, divided by the rows of all processes.
                count, output = batch["num_sentences_in_batch"], self.wrapped(**batch)
                losses = torch.stack([output.loss, *(output.losses[term] for term in self.terms)])
                totals += torch.cat((losses.float() * count, count.new_tensor([len(rows)]).float()))
        totals = self.accelerator.reduce(totals, "sum")
        *losses, number = totals.tolist()
        return {f"validation_{name}": loss / number for name, loss in zip(names, losses, strict=True)}

    def translation_bleu(self) -> float:
        """Cased BLEU of the greedy translations, by sacrebleu's 13a, or by character in scripts without spaces."""
        hypotheses = self.prepared.output_tokenizer.batch_decode(
            self._generate(self.prepared.validation_texts), skip_special_tokens=True
        )
        references = self.prepared.references
        return score_texts(hypotheses, references, tokenization_of(references, "13a"), rouge=False).bleu

    def samples(self, number: int) -> list[tuple[str, str]]:
        """The first texts and their greedy reconstructions."""
        texts = self.prepared.validation_texts[:number]
        if not texts or not self.generates:
            return []
        # Special tokens are kept: the only one in generated ids is `<unk>`, which is to be seen.
        return list(zip(texts, self.prepared.output_tokenizer.batch_decode(self._generate(texts)), strict=True))

    def generated_scores(self, show_progress: bool) -> dict[str, float]:
        """BLEU of the greedy translations, or BLEU and exact matches of the greedy reconstructions."""
        texts = self.prepared.validation_texts
        if not texts or not self.generates:
            return {}
        if self.prepared.references:
            return {"validation_bleu": self.translation_bleu()}
        found = score_reconstructions(self.prepared.tokenizer, texts, self._generate(texts, show_progress))
        return {"validation_bleu": found.bleu, "validation_exact_match": found.exact_match}

    def teacher_scores(self) -> dict[str, float]:
        """How close a student is to its teacher: the share of a text's ten nearest held-out texts by the teacher that
        are also its ten nearest by the embeddings, and in the teacher's space the same share and the mean cosine."""
        model, texts = self.model, self.prepared.validation_texts
        if self.vectors is None or not model.config.reads_text or self.is_sharded or len(texts) < 2:
            return {}
        teacher = self.vectors[np.arange(len(texts))]
        with torch.no_grad(), self._evaluating():
            own = encode_rows(model, self.prepared.tokenizer, texts)
            mapped = own
            if model.teacher_head is not None:
                mapped = model.teacher_head(torch.from_numpy(own).to(model.device)).float().cpu().numpy()
        scores = {"validation_teacher_neighbors": shared_neighbors(own, teacher)}
        if self.args.teacher_weight > 0:
            scores["validation_teacher_space_neighbors"] = shared_neighbors(mapped, teacher)
            scores["validation_teacher_cosine"] = float(paired_cosines(mapped, teacher).mean())
        return scores

    def _generate(self, texts: list[str], show_progress: bool = False) -> list[list[int]]:
        with self._evaluating():
            if self.vectors is not None and not self.model.config.reads_text:
                vectors = self.vectors[np.arange(len(texts))]
                return generate_ids(self.model, self.prepared.tokenizer, vectors, show_progress=show_progress)
            return reconstruct(self.model, self.prepared.tokenizer, texts, show_progress=show_progress)
