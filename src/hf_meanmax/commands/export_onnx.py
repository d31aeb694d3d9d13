"""Write a checkpoint's encoder as ONNX, also with int8 weights, and check both against torch.

hf-meanmax export-onnx runs/mine/model
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from hf_meanmax.data.opening import TextOptions
from hf_meanmax.inference.onnx_export import TEXTS, export_onnx, onnx_folder
from hf_meanmax.pretrained import ENCODER_SOURCES

from .options import option, positional, verb, written


@dataclass
class ExportOnnxOptions(TextOptions):
    """The options of `hf-meanmax export-onnx`."""

    checkpoint: str = positional(f"a checkpoint ({ENCODER_SOURCES})")
    output: str | None = written("folder; by default onnx/ in the checkpoint, where it is a folder of yours", None)
    int8: bool = option("whether the quantised model is written too", True)
    texts: str | None = option("text file or table: compare with torch on its first 1,000 texts", None)


@verb("export-onnx")
def main(args: ExportOnnxOptions) -> None:
    """Write a checkpoint's encoder as ONNX, and check it against torch."""
    folder = onnx_folder(args.checkpoint, args.output)
    texts: Sequence[str] = TEXTS
    if args.texts is not None:
        texts = list(islice(filter(None, args.open_beside(args.texts)), 1000))
    if not texts:
        raise ValueError(f"{args.texts} has no text to compare on.")
    report = export_onnx(args.checkpoint, folder, int8=args.int8, texts=texts)
    for name, found in report.items():
        print(
            f"{name}: {found['bytes'] / 1e6:.1f} MB; against torch: largest difference "
            f"{found['largest_difference']:.2g}, least cosine {found['least_cosine']:.5f}"
        )
    print(f"written to {folder}")
