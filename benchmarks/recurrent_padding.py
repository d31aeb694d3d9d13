"""A bidirectional LSTM over padded rows, forward and backward: as this package runs it against packed sequences.

    python benchmarks/recurrent_padding.py --lengths 16 32 64 128 256

Half of the rows are an eighth shorter. All run in turn; prints rows/s and the ratio to packed
sequences of the same length in the same round.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial

import torch
from rounds import Measured, add_options, device, measure_in_turn, report
from torch import nn

from hf_meanmax.hardware import synchronize
from hf_meanmax.modeling.recurrent import _run_packed, run_recurrent


def packed(network: nn.LSTM, inputs: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return _run_packed(network, inputs, mask.sum(dim=1), None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[16, 32, 64, 128, 256])
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--input-size", type=int, default=300)
    parser.add_argument("--hidden-size", type=int, default=150)
    add_options(parser)
    args = parser.parse_args()
    torch.manual_seed(0)
    network = nn.LSTM(args.input_size, args.hidden_size, batch_first=True, bidirectional=True).to(device())

    def measure(run: Callable[..., torch.Tensor], inputs: torch.Tensor, mask: torch.Tensor) -> Measured:
        synchronize(device())
        start = time.perf_counter()
        run(network, inputs, mask).sum().backward()
        synchronize(device())
        return {"rows/s": len(inputs) / (time.perf_counter() - start)}

    measurements, references = {}, {}
    for length in args.lengths:
        mask = torch.ones(args.rows, length, dtype=torch.long, device=device())
        mask[::2, length - length // 8 :] = 0
        inputs = torch.randn(args.rows, length, args.input_size, device=device(), requires_grad=True)
        for name, run in (("ours", run_recurrent), ("packed", packed)):
            measurements[f"{length} tokens, {name}"] = partial(measure, run, inputs, mask)
            references[f"{length} tokens, {name}"] = f"{length} tokens, packed"
    for run in measurements.values():
        run()
    report(measure_in_turn(measurements, args.rounds, references=references), args)


if __name__ == "__main__":
    main()
