"""Write a page that shows how much of their texts an embedder's vectors reveal.

hf-meanmax audit --embedder sentence-transformers/all-MiniLM-L6-v2 --decoder runs/embedding-decoder/model \
    --texts my.txt --corpus other.txt --output audit
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from hf_meanmax.evaluation.audit import AuditSettings
from hf_meanmax.evaluation.audit_page import PAGE_FILE
from hf_meanmax.evaluation.audit_run import AuditSource, audit_checkpoint
from hf_meanmax.inference.decode import DecodingSettings
from hf_meanmax.metrics import counted
from hf_meanmax.processes import process_state

from .options import verb, written


@dataclass
class AuditOptions:
    """The output of `hf-meanmax audit`."""

    output: str = written("folder of audit.html and audit.json", folder=True)


@verb("audit", compute_dtype="auto")
def main(source: AuditSource, args: AuditOptions, attack: DecodingSettings, settings: AuditSettings) -> None:
    """Write a page that shows how much of their texts an embedder's vectors reveal."""
    result = audit_checkpoint(source, args.output, attack, settings, process_state().device)
    scores = {name: value for name, value in result["decoder"].items() if name != "by_length"}
    page = str(Path(args.output) / PAGE_FILE)
    print(json.dumps({**scores, "page": page}))
    print(
        f"BLEU {scores['bleu']:.1f} of 100; {scores['exact_match']:.1%} of {counted(result['texts'], 'text')} came "
        f"back word for word: {page}",
        file=sys.stderr,
    )
