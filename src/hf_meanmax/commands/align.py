"""Fit a linear map from an embedder's vectors to an autoencoder's latent rows, which its decoder can decode.

hf-meanmax align my.txt --embedder sentence-transformers/all-MiniLM-L6-v2 --to runs/mine/model --output runs/aligned
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from itertools import islice

from hf_meanmax.checkpoint.folder import load_decoder, require_reconstruction, save_checkpoint
from hf_meanmax.evaluation.reconstruction import score_reconstructions
from hf_meanmax.files import check_new_folder, shared_name
from hf_meanmax.inference.alignment import align, check_alignable, check_texts
from hf_meanmax.inference.decode import generate_ids
from hf_meanmax.inference.embedder import load_embedder
from hf_meanmax.pretrained import DECODER_SOURCES, ENCODER_SOURCES
from hf_meanmax.processes import process_state

from .options import CorpusOptions, count, option, verb, written


@dataclass
class AlignOptions:
    """The options of `hf-meanmax align`, besides those of the corpus."""

    embedder: str = option(f"a SentenceTransformer whose vectors are to be decoded ({ENCODER_SOURCES})")
    to: str = option(f"an autoencoder, whose decoder reads what the map gives ({DECODER_SOURCES})")
    output: str = written("the new folder", folder=True)
    embedder_prompt: str = option("text put before each text that the embedder reads", "")
    validation: str | None = option("a file of held-out texts; by default every tenth of the corpus is held out", None)
    limit: int = count("most texts that are read", 50_000)
    score_texts: int = option("held-out texts that are decoded and scored (0: none)", 500, at_least=0)
    batch_size: int = count("texts of one forward pass", 64)
    trust_remote_code: bool = option("run code that comes with the embedder", False)


@verb("align")
def main(corpus_options: CorpusOptions, args: AlignOptions) -> None:
    """Fit a linear map from an embedder's vectors to an autoencoder's latent rows, which its decoder can decode."""
    output = check_new_folder(args.output)
    require_reconstruction(args.to)
    texts = list(islice(filter(None, corpus_options.open()), args.limit))
    validation = None
    if args.validation is not None:
        validation = list(filter(None, corpus_options.open_beside(args.validation)))
    check_texts(texts)
    device = process_state().device
    model, tokenizer, target_tokenizer = load_decoder(args.to, device)
    check_alignable(model)
    embedder = load_embedder(args.embedder, args.embedder_prompt, device, args.trust_remote_code)
    found = align(embedder, args.embedder, model, tokenizer, texts, validation, args.batch_size, show_progress=True)
    report = found.report
    scored = found.validation[: args.score_texts]
    if scored:
        tokens = generate_ids(found.model, target_tokenizer, found.vectors[: len(scored)], show_progress=True)
        scores = score_reconstructions(target_tokenizer, scored, tokens)
        report |= {"validation_bleu": scores.bleu, "validation_exact_match": scores.exact_match}
    settings = {"objective": "embedding_inversion", "embedder": shared_name(args.embedder), "to": shared_name(args.to)}
    save_checkpoint(found.model, target_tokenizer, output, training_args={**settings, "results": report})
    print(json.dumps(report))
    came_back = f", BLEU {report['validation_bleu']:.1f} of 100" if scored else ""
    print(f"{report['explained_variance']:.1%} of the variance explained{came_back}: {output}", file=sys.stderr)
