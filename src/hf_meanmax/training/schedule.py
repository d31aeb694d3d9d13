"""The learning rate schedule and the progress of a run."""

from __future__ import annotations

import math

from .settings import PretrainArguments

_MOST_WARMUP = 0.25


class Schedule:
    """The learning rate over a run, and its progress towards the limit that will end it.

    Warm-up takes at most a quarter of a run. If time or tokens end the run, its number of steps is not known, and the
    decay follows the share of the whole run, warm-up included.

    Args:
        args: settings with `warmup_steps`, `lr_schedule` and the limits `max_minutes` and `max_training_tokens`.
        total_steps: steps after which the run ends unless another limit ends it first.
    """

    def __init__(self, args: PretrainArguments, total_steps: int) -> None:
        self.args = args
        self.total_steps = total_steps
        self.warmup_steps = min(args.warmup_steps, math.ceil(_MOST_WARMUP * total_steps))

    def learning_rate(self, step: int, seconds: float, tokens: int) -> float:
        """The learning rate of the step after `step` steps, `seconds` and target `tokens`."""
        return self.args.learning_rate * self.factor(step, seconds, tokens)

    def factor(self, step: int, seconds: float, tokens: int) -> float:
        """The factor of the learning rate, in 0..1."""
        args, share = self.args, self._by_limits(seconds, tokens)
        if step < self.warmup_steps and share < _MOST_WARMUP:
            return max((step + 1) / self.warmup_steps, share / _MOST_WARMUP)
        by_steps = (step - self.warmup_steps) / max(1, self.total_steps - self.warmup_steps)
        progress = min(1.0, max(by_steps, share))
        if args.lr_schedule == "linear":
            return 1.0 - progress
        if args.lr_schedule == "cosine":
            return 0.5 * (1.0 + math.cos(math.pi * progress))
        return 1.0

    def expected_steps(self, step: int, seconds: float, tokens: int) -> int:
        """The expected number of steps at the end of the run, by the pace so far; the total of a progress bar."""
        share = self._by_limits(seconds, tokens)
        if share <= 0:
            return self.total_steps
        return max(step, min(self.total_steps, round(step / min(1.0, share))))

    def _by_limits(self, seconds: float, tokens: int) -> float:
        args = self.args
        by_time = seconds / (60 * args.max_minutes) if args.max_minutes else 0.0
        by_tokens = tokens / args.max_training_tokens if args.max_training_tokens else 0.0
        return max(by_time, by_tokens)
