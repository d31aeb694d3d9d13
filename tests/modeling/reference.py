"""The autoencoders written out from their equations: one sentence, one head, one position at a time.

Equation numbers are those of the mean-max autoencoder (Zhang, Wu, Li and Li 2018), and those marked G of the gated one
(Zhang, Wu, Li and Zhang), T of the compound-attention thesis; where the first is silent, the released code's form is
named. RNN-CNN's section 2 names its parts without numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

SPECIAL_TOKENS = 4  # <pad>, <unk>, <s>, </s>
START = 2
RECURRENT_WEIGHTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


def sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x))


def relu(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, torch.zeros_like(x))


def tanh(x: Tensor) -> Tensor:
    return 1 - 2 / (1 + torch.exp(2 * x))


def softmax(scores: list[Tensor]) -> Tensor:
    powers = [torch.exp(score) for score in scores]
    return torch.stack([power / sum(powers) for power in powers])


@dataclass
class Reference:
    """The whole model for one sentence at a time.

    Args:
        weights: the parameters by their names in the checkpoint.
        heads, layers, eps: sizes and the layer normalisation's epsilon.
        encoder: "self_attention", "bilstm", "lstm", "bigru", "gru", "cnn" or "hierarchical_cnn".
        rows: names of the latent rows in order; those of inner attention are "head_1" and so on. Without any, the
            decoder reads the hidden states.
        decoder: "attention", "gates", "lstm", "lstm_attention", "lstm_gates", "gru", "conditional_gru", "causal_cnn",
            "words_cnn" or "words_rnn".
        relu: ReLU on queries, keys and values (released code).
        residual: the encoder's first layer adds each token's own value.
        positions: "sinusoidal" (eq. 1-2), "learned" (released code) or "none".
        frozen: special tokens have a table of their own.
        tied: the output scores words by the word table.
        places: words that a decoder predicts at once.
        context: what a conditional GRU reads: "attention", "constant" or "none".
        gates: left by `decode`: for each layer and step the gates (rows, d) on the gated rows.
        source_weights: left by `encode`: of each head of inner attention the weights of the words (T4.5).
        row_weights: left by `decode`: for each layer and step of a conditional GRU the weights of what it attends to.
    """

    weights: dict[str, Tensor]
    heads: int
    layers: int
    eps: float
    encoder: str
    rows: tuple[str, ...]
    decoder: str
    relu: bool
    positions: str
    frozen: bool
    tied: bool
    places: int = 0
    context: str = ""
    residual: bool = False
    gates: list[list[Tensor]] = field(default_factory=list)
    source_weights: list[Tensor] = field(default_factory=list)
    row_weights: list[list[Tensor]] = field(default_factory=list)

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
            return torch.tensor(code, dtype=torch.float32).double()  # the models' codes are float32
        table = self.weights.get("encoder.embeddings.position_embeddings.weight")
        if table is not None and t < len(table):
            return table[t]
        return torch.zeros(width, dtype=torch.float64)

    def embed_word(self, word: int, t: int) -> Tensor:
        """x_t = e_t + p_t."""
        own = self.frozen and word < SPECIAL_TOKENS
        table = "special_embeddings" if own else "word_embeddings"
        e = self.weights[f"encoder.embeddings.{table}.weight"][word]
        return e + self.position(t, len(e))

    def embed(self, ids: list[int]) -> list[Tensor]:
        return [self.embed_word(word, t) for t, word in enumerate(ids)]

    def project(self, name: str, x: Tensor) -> Tensor:
        y = self.linear(name, x)
        return torch.where(y > 0, y, torch.zeros_like(y)) if self.relu else y

    def attend(self, name: str, query: Tensor, rows: list[Tensor]) -> Tensor:
        """(3)-(7): heads concatenated, nothing after them."""
        q = self.project(f"{name}.query", query)
        keys = [self.project(f"{name}.key", row) for row in rows]
        values = [self.project(f"{name}.value", row) for row in rows]
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
        if self.residual and name == "encoder.sequence_encoder.layers.0":
            a = a + self.project(f"{name}.attention.value", x)
        return self.norm(f"{name}.attention_norm", a if layer == 0 else a + x)  # (9), (16)

    def lstm_cell(self, name: str, direction: str, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """The next h and c; the rows of the weights belong to the gates i, f, the candidate g and the gate o."""

        def part(which: int) -> Tensor:
            rows = slice(which * len(h), (which + 1) * len(h))
            w, u, a, b = (self.weights[f"{name}.{kind}_l0{direction}"][rows] for kind in RECURRENT_WEIGHTS)
            return w @ x + u @ h + a + b

        i, f, g, o = sigmoid(part(0)), sigmoid(part(1)), tanh(part(2)), sigmoid(part(3))
        c = f * c + i * g
        return o * tanh(c), c

    def lstm(self, name: str, direction: str, xs: list[Tensor]) -> list[Tensor]:
        """The outputs in the order of `xs`, from zeros."""
        size = self.weights[f"{name}.weight_hh_l0{direction}"].shape[1]
        h = c = torch.zeros(size, dtype=torch.float64)
        outputs = []
        for x in xs:
            h, c = self.lstm_cell(name, direction, x, h, c)
            outputs.append(h)
        return outputs

    def gru_cell(self, name: str, suffix: str, x: Tensor, h: Tensor) -> Tensor:
        """The next h; the rows of the weights belong to the gates r and z and the candidate n."""
        w, u, a, b = (self.weights[f"{name}.{kind}{suffix}"] for kind in RECURRENT_WEIGHTS)
        of_input, of_state = w @ x + a, u @ h + b
        size = len(h)
        r = sigmoid(of_input[:size] + of_state[:size])
        z = sigmoid(of_input[size : 2 * size] + of_state[size : 2 * size])
        n = tanh(of_input[2 * size :] + r * of_state[2 * size :])
        return (1 - z) * n + z * h

    def gru(self, name: str, direction: str, xs: list[Tensor]) -> list[Tensor]:
        """The outputs in the order of `xs`, from zeros."""
        h = torch.zeros(self.weights[f"{name}.weight_hh_l0{direction}"].shape[1], dtype=torch.float64)
        outputs = []
        for x in xs:
            h = self.gru_cell(name, f"_l0{direction}", x, h)
            outputs.append(h)
        return outputs

    def convolve(self, name: str, xs: list[Tensor], before: int) -> list[Tensor]:
        """A convolution that sees so many vectors before each, and the rest from it on; zeros beyond the ends."""
        kernel = self.weights[f"{name}.weight"]
        outputs = []
        for t in range(len(xs)):
            y = self.weights[f"{name}.bias"]
            for place in range(kernel.shape[2]):
                s = t - before + place
                if 0 <= s < len(xs):
                    y = y + kernel[:, :, place] @ xs[s]
            outputs.append(y)
        return outputs

    def filters(self, name: str, xs: list[Tensor]) -> list[Tensor]:
        """tanh of filters of 3, 4 and 5 words around (of four words: one before, two after), zeros beyond the ends."""
        outputs = []
        for t in range(len(xs)):
            found = []
            for index, (before, after) in enumerate(((1, 1), (1, 2), (2, 2))):
                kernel, y = self.weights[f"{name}.{index}.weight"], self.weights[f"{name}.{index}.bias"]
                for place, s in enumerate(range(t - before, t + after + 1)):
                    if 0 <= s < len(xs):
                        y = y + kernel[:, :, place] @ xs[s]
                found.append(tanh(y))
            outputs.append(torch.cat(found))
        return outputs

    def encode(self, ids: list[int]) -> tuple[list[Tensor], list[Tensor]]:
        """Hidden states, and the latent rows Z."""
        states = self.embed(ids)
        last, outputs = None, []
        for layer in range(self.layers):
            name = f"encoder.sequence_encoder.layers.{layer}"
            if self.encoder == "self_attention":
                attended = [self.self_attention(name, layer, x, states) for x in states]
                states = [
                    self.norm(f"{name}.output_norm", self.feed_forward(f"{name}.feed_forward", a) + a) for a in attended
                ]  # (10), (11)
                last = states[-1]
            elif self.encoder == "bilstm":
                forwards = self.lstm(f"{name}.network", "", states)
                backwards = self.lstm(f"{name}.network", "_reverse", states[::-1])
                last = torch.cat((forwards[-1], backwards[-1]))
                states = [torch.cat(pair) for pair in zip(forwards, backwards[::-1], strict=True)]
            elif self.encoder == "lstm":
                states = self.lstm(f"{name}.network", "", states)
                last = states[-1]
            elif self.encoder == "bigru":
                forwards = self.gru(f"{name}.network", "", states)
                backwards = self.gru(f"{name}.network", "_reverse", states[::-1])
                last = torch.cat((forwards[-1], backwards[-1]))
                states = [torch.cat(pair) for pair in zip(forwards, backwards[::-1], strict=True)]
            elif self.encoder == "gru":
                states = self.gru(f"{name}.network", "", states)
                last = states[-1]
            elif self.encoder == "hierarchical_cnn":
                states = [relu(y) for y in self.convolve(f"{name}.convolution", states, before=1)]
                outputs.append(states)
            else:
                states = self.filters(f"{name}.convolutions", states)
                last = states[-1]
        if outputs:
            states = [torch.cat(of_layers) for of_layers in zip(*outputs, strict=True)]
            last = states[-1]
        if not self.rows:
            return states, states
        projected, projection = states, self.weights.get("encoder.pooler.projection.weight")
        if projection is not None:
            projected, last = [projection @ h for h in states], None if last is None else projection @ last
        if self.rows[0] == "head_1":
            inner = [tanh(self.linear("encoder.pooler.hidden", h)) for h in states]
            scores = [self.linear("encoder.pooler.scores", h) for h in inner]
            self.source_weights = [
                softmax([score[head] for score in scores]) for head in range(len(self.rows))
            ]  # (T4.5)
            return states, [
                sum(a * h for a, h in zip(row, projected, strict=True)) for row in self.source_weights
            ]  # (T4.4)
        z_max = torch.stack([max(values) for values in zip(*projected, strict=True)])  # (12)
        z_mean = sum(projected) / len(projected)  # (13)
        return states, [{"max": z_max, "mean": z_mean, "last": last}[row] for row in self.rows]  # (14)

    def read_gates(self, name: str, f: Tensor, latents: list[Tensor], gated: list[str]) -> tuple[Tensor, Tensor]:
        """What the gates let through of the gated rows, and the gates (rows, d) (G19, G20)."""
        zs = [latents[self.rows.index(row)] for row in gated]
        gates = [
            sigmoid(self.linear(f"{name}.latent_projections.{i}", z) + self.linear(f"{name}.state_projections.{i}", f))
            for i, z in enumerate(zs)
        ]
        return sum(z * gate for z, gate in zip(zs, gates, strict=True)), torch.stack(gates)

    def attending_layer(self, layer: int, y: Tensor, ys: list[Tensor], latents: list[Tensor]) -> Tensor:
        """The output at y of a decoder layer with self-attention over `ys`, y among them."""
        name = f"decoder.sequence_decoder.layers.{layer}"
        a = self.self_attention(name, layer, y, ys)
        if self.decoder == "attention":
            c = self.norm(f"{name}.latent_norm", self.attend(f"{name}.latent_attention", a, latents) + a)  # (17), (18)
            return self.norm(f"{name}.output_norm", self.feed_forward(f"{name}.feed_forward", c) + c)  # (19), (20)
        f = self.norm(f"{name}.output_norm", self.feed_forward(f"{name}.feed_forward", a) + a)  # (G17), (G18)
        read, gates = self.read_gates(f"{name}.latent_gates", f, latents, self.rows)
        self.gates[layer].append(gates)
        return self.norm(f"{name}.latent_norm", f + read)  # (G21)

    def first_state(self, layer: int, latents: list[Tensor]) -> tuple[Tensor, Tensor]:
        """h and c before the first word: from all rows, from the last state, or zeros."""
        rows = [row for row in self.rows if self.decoder == "lstm" or (self.decoder == "lstm_gates" and row == "last")]
        size = self.weights[f"decoder.sequence_decoder.layers.{layer}.lstm.weight_hh_l0"].shape[1]
        if not rows:
            return torch.zeros(size, dtype=torch.float64), torch.zeros(size, dtype=torch.float64)
        read = torch.cat([latents[self.rows.index(row)] for row in rows])
        state = self.linear(f"decoder.sequence_decoder.layers.{layer}.initial_state", read)
        return tanh(state[:size]), state[size:]

    def recurrent_layer(
        self, layer: int, y: Tensor, h: Tensor, c: Tensor, latents: list[Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The output at y of a recurrent decoder layer whose state is h and c, and the next h and c."""
        name = f"decoder.sequence_decoder.layers.{layer}"
        h, c = self.lstm_cell(f"{name}.lstm", "", y, h, c)
        if self.decoder == "lstm":
            return h, h, c
        if self.decoder == "lstm_attention":
            read = self.attend(f"{name}.latent_attention", h, latents)
        else:
            gated = [row for row in self.rows if row != "last"]
            read, gates = self.read_gates(f"{name}.latent_gates", h, latents, gated)
            self.gates[layer].append(gates)
        return self.norm(f"{name}.latent_norm", h + read), h, c

    def conditional_gru_layer(self, layer: int, ys: list[Tensor], latents: list[Tensor]) -> list[Tensor]:
        """The outputs at ys: a block for the word, one for the context, and tanh of state, word and context."""
        name = f"decoder.sequence_decoder.layers.{layer}"
        if f"{name}.start" in self.weights:
            h = self.weights[f"{name}.start"]
        else:
            h = tanh(self.linear(f"{name}.initial_state", torch.cat(latents)))
        outputs = []
        for y in ys:
            h = self.gru_cell(f"{name}.word_block", "", y, h)
            read = []
            if self.context == "attention":
                query = self.linear(f"{name}.latent_attention.query", h)
                keys = [self.linear(f"{name}.latent_attention.key", z) for z in latents]
                scores = [self.linear(f"{name}.latent_attention.score", tanh(query + key))[0] for key in keys]
                weights = softmax(scores)
                self.row_weights[layer].append(weights)
                read = [sum(b * z for b, z in zip(weights, latents, strict=True))]  # (T4.6)
            elif self.context == "constant":
                read = [torch.cat(latents)]
            if read:
                h = self.gru_cell(f"{name}.context_block", "", read[0], h)
            outputs.append(tanh(self.linear(f"{name}.readout", torch.cat((h, y, *read)))))
        return outputs

    def scores(self, h: Tensor) -> Tensor:
        """Of the vocabulary (21)."""
        if not self.tied:
            return self.linear("lm_head", h)
        # A decoder with widths of its own ends in that of the words.
        y = self.linear("output_projection", h) if "output_projection.weight" in self.weights else h
        scores = self.weights["encoder.embeddings.word_embeddings.weight"] @ y
        bias = self.weights.get("lm_head.bias")
        return scores if bias is None else scores + bias

    def all_words(self, latents: list[Tensor]) -> list[Tensor]:
        """The states at all places, from Z alone: a linear map for each, then convolutions, or a BiGRU and the last."""
        name, z = "decoder.sequence_decoder.layers.0", torch.cat(latents)
        weight, bias = self.weights[f"{name}.expansion.weight"], self.weights[f"{name}.expansion.bias"]
        size = len(weight) // self.places
        parts = [slice(place * size, (place + 1) * size) for place in range(self.places)]
        states = [relu(weight[part] @ z + bias[part]) for part in parts]
        if self.decoder == "words_rnn":
            forwards = self.gru(f"{name}.gru", "", states)
            backwards = self.gru(f"{name}.gru", "_reverse", states[::-1])[::-1]
            states = [torch.cat(pair) for pair in zip(forwards, backwards, strict=True)]
            return self.convolve(f"{name}.convolutions.0", states, before=0)
        return self.convolutions(f"{name}.convolutions", states, before=1)

    def convolutions(self, name: str, states: list[Tensor], before: int) -> list[Tensor]:
        """All with ReLU but the last one, which sees a single place."""
        depth = sum(key.startswith(f"{name}.") and key.endswith(".weight") for key in self.weights)
        for index in range(depth - 1):
            states = [relu(y) for y in self.convolve(f"{name}.{index}", states, before)]
        assert self.weights[f"{name}.{depth - 1}.weight"].shape[2] == 1
        return self.convolve(f"{name}.{depth - 1}", states, before=0)

    def decode(self, latents: list[Tensor], targets: list[int]) -> list[Tensor]:
        """Scores of the vocabulary at each target, under teacher forcing where the decoder reads words."""
        if self.decoder.startswith("words_"):
            return [self.scores(h) for h in self.all_words(latents)[: len(targets)]]
        states = self.embed([START, *targets[:-1]])
        self.gates, self.row_weights = ([[] for _ in range(self.layers)] for _ in range(2))
        for layer in range(self.layers):
            if self.decoder == "conditional_gru":
                states = self.conditional_gru_layer(layer, states, latents)
                continue
            if self.decoder in ("attention", "gates"):
                states = [self.attending_layer(layer, y, states[: t + 1], latents) for t, y in enumerate(states)]
                continue
            if self.decoder == "gru":
                name = f"decoder.sequence_decoder.layers.{layer}.gru"
                states = self.gru(name, "", [torch.cat((y, *latents)) for y in states])
                continue
            if self.decoder == "causal_cnn":
                name = f"decoder.sequence_decoder.layers.{layer}"
                states = [relu(self.linear(f"{name}.expansion", torch.cat((y, *latents)))) for y in states]
                states = self.convolutions(f"{name}.convolutions", states, before=2)
                break  # however many layers the encoder has
            h, c = self.first_state(layer, latents)
            outputs = []
            for y in states:
                output, h, c = self.recurrent_layer(layer, y, h, c, latents)
                outputs.append(output)
            states = outputs
        return [self.scores(h) for h in states]

    def say(self, latents: list[Tensor], steps: int) -> list[int]:
        """Greedy decoding by a recurrent decoder that carries its state along: the start symbol and `steps` words."""
        words = [START]
        self.gates = [[] for _ in range(self.layers)]
        memory = [self.first_state(layer, latents) for layer in range(self.layers)]
        for t in range(steps):
            y = self.embed_word(words[-1], t)
            for layer, (h, c) in enumerate(memory):
                y, h, c = self.recurrent_layer(layer, y, h, c, latents)
                memory[layer] = h, c
            words.append(int(self.scores(y).argmax()))
        return words

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
