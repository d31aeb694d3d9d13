"""The mean-max attention autoencoder written out from its equations (Zhang et al., EMNLP 2018): one sentence, one head,
one position at a time. Equation numbers are the paper's; where it is silent, the released code's form is named."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

SPECIAL_TOKENS = 4  # <pad>, <unk>, <s>, </s>
START = 2


@dataclass
class Reference:
    """The whole model for one sentence at a time.

    Args:
        weights: the parameters by their names in the checkpoint.
        heads, layers, eps: sizes and the layer normalisation's epsilon.
        rows: names of the latent rows in order.
        relu: ReLU on queries, keys and values (released code).
        positions: "sinusoidal" (eq. 1-2), "learned" (released code) or "none".
        frozen: special tokens have a table of their own.
        tied: the output scores words by the word table.
    """

    weights: dict[str, Tensor]
    heads: int
    layers: int
    eps: float
    rows: tuple[str, ...]
    relu: bool
    positions: str
    frozen: bool
    tied: bool

    def linear(self, name: str, x: Tensor) -> Tensor:
        y = self.weights[f"{name}.weight"] @ x
        bias = self.weights.get(f"{name}.bias")
        return y if bias is None else y + bias

    def norm(self, name: str, x: Tensor) -> Tensor:
        centred = x - x.sum() / len(x)
        variance = (centred * centred).sum() / len(x)
        return centred / torch.sqrt(variance + self.eps) * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def position(self, t: int, width: int) -> Tensor:
        if self.positions == "sinusoidal":  # (1), (2)
            code = [(math.sin if i % 2 == 0 else math.cos)(t / 10000 ** ((i - i % 2) / width)) for i in range(width)]
            return torch.tensor(code, dtype=torch.float64)
        table = self.weights.get("encoder.embeddings.position_embeddings.weight")
        if table is not None and t < len(table):
            return table[t]
        return torch.zeros(width, dtype=torch.float64)

    def embed(self, ids: list[int]) -> list[Tensor]:
        """x_t = e_t + p_t."""
        vectors = []
        for t, word in enumerate(ids):
            own = self.frozen and word < SPECIAL_TOKENS
            table = "special_embeddings" if own else "word_embeddings"
            e = self.weights[f"encoder.embeddings.{table}.weight"][word]
            vectors.append(e + self.position(t, len(e)))
        return vectors

    def attend(self, name: str, query: Tensor, rows: list[Tensor]) -> Tensor:
        """(3)-(7): heads concatenated, nothing after them."""

        def project(which: str, x: Tensor) -> Tensor:
            y = self.linear(f"{name}.{which}", x)
            return torch.where(y > 0, y, torch.zeros_like(y)) if self.relu else y

        q = project("query", query)
        keys = [project("key", row) for row in rows]
        values = [project("value", row) for row in rows]
        size = len(q) // self.heads
        heads = []
        for head in range(self.heads):
            part = slice(head * size, (head + 1) * size)
            scores = [(q[part] * key[part]).sum() / math.sqrt(size) for key in keys]
            total = sum(torch.exp(score) for score in scores)
            heads.append(sum(torch.exp(s) / total * v[part] for s, v in zip(scores, values, strict=True)))
        return torch.cat(heads)

    def feed_forward(self, name: str, x: Tensor) -> Tensor:
        inner = self.linear(f"{name}.up", x)
        return self.linear(f"{name}.down", torch.where(inner > 0, inner, torch.zeros_like(inner)))

    def self_attention(self, name: str, layer: int, x: Tensor, rows: list[Tensor]) -> Tensor:
        a = self.attend(f"{name}.attention", x, rows)  # (8), (15)
        return self.norm(f"{name}.attention_norm", a if layer == 0 else a + x)  # (9), (16)

    def encode(self, ids: list[int]) -> tuple[list[Tensor], list[Tensor]]:
        """Hidden states, and the latent rows Z."""
        states = self.embed(ids)
        for layer in range(self.layers):
            name = f"encoder.sequence_encoder.layers.{layer}"
            attended = [self.self_attention(name, layer, x, states) for x in states]
            states = [
                self.norm(f"{name}.output_norm", self.feed_forward(f"{name}.feed_forward", a) + a) for a in attended
            ]  # (10), (11)
        z_max = torch.stack([max(values) for values in zip(*states, strict=True)])  # (12)
        z_mean = sum(states) / len(states)  # (13)
        return states, [{"max": z_max, "mean": z_mean}[row] for row in self.rows]  # (14)

    def decode(self, latents: list[Tensor], targets: list[int]) -> list[Tensor]:
        """Scores of the vocabulary at each target, under teacher forcing."""
        states = self.embed([START, *targets[:-1]])
        for layer in range(self.layers):
            name = f"decoder.sequence_decoder.layers.{layer}"
            new_states = []
            for t, y in enumerate(states):
                a = self.self_attention(name, layer, y, states[: t + 1])
                c = self.norm(f"{name}.latent_norm", self.attend(f"{name}.latent_attention", a, latents) + a)  # (17-18)
                new_states.append(self.norm(f"{name}.output_norm", self.feed_forward(f"{name}.feed_forward", c) + c))
            states = new_states  # (19), (20)
        if not self.tied:
            return [self.linear("lm_head", h) for h in states]  # (21)
        table, bias = self.weights["encoder.embeddings.word_embeddings.weight"], self.weights["lm_head.bias"]
        return [table @ self.linear("output_projection", h) + bias for h in states]

    def loss(self, sentences: list[list[int]], label_smoothing: float = 0.0) -> Tensor:
        """(22), nats per target over all sentences; the released code mixes a uniform distribution into the target."""
        total, count = torch.zeros((), dtype=torch.float64), 0
        for ids in sentences:
            _, latents = self.encode(ids)
            for word, scores in zip(ids, self.decode(latents, ids), strict=True):
                log_p = scores - torch.log(sum(torch.exp(score) for score in scores))
                total = total - (1 - label_smoothing) * log_p[word] - label_smoothing * log_p.sum() / len(log_p)
                count += 1
        return total / count
