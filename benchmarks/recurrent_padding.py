"""A bidirectional LSTM over padded rows, forward and backward: as this package runs it against packed sequences.

    python benchmarks/recurrent_padding.py --lengths 16 32 64 128 256

Half of the rows are an eighth shorter. Both run in turn; medians of the ratio of the same round.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
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
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    network = nn.LSTM(args.input_size, args.hidden_size, batch_first=True, bidirectional=True).to(device)
    for length in args.lengths:
        mask = torch.ones(args.rows, length, dtype=torch.long, device=device)
        mask[::2, length - length // 8 :] = 0
        inputs = torch.randn(args.rows, length, args.input_size, device=device, requires_grad=True)
        times: dict[str, list[float]] = {"ours": [], "packed": []}
        for number in range(args.rounds + 1):
            for name, run in (("ours", run_recurrent), ("packed", packed)):
                synchronize(device)
                start = time.perf_counter()
                run(network, inputs, mask).sum().backward()
                synchronize(device)
                # The first round warms up.
                if number:
                    times[name].append(time.perf_counter() - start)
        ratios = [theirs / ours for ours, theirs in zip(times["ours"], times["packed"], strict=True)]
        print(
            f"{length:4d} tokens: ours {1e3 * statistics.median(times['ours']):7.1f} ms, packed "
            f"{1e3 * statistics.median(times['packed']):7.1f} ms, ratio {statistics.median(ratios):.2f} "
            f"({min(ratios):.2f}-{max(ratios):.2f}); {torch.get_num_threads()} thread(s), {device.type}",
            flush=True,
        )


if __name__ == "__main__":
    main()
