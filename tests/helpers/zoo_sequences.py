"""Networks over sequences, tokens and tables."""

import math

import numpy as np
from zoo_parts import net_of, picture, values

import megengine.functional as F
import megengine.module as M
from megengine.tensor import Parameter, Tensor


class Attention(M.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.scale = heads, (dim // heads) ** -0.5
        self.qkv, self.proj = M.Linear(dim, 3 * dim), M.Linear(dim, dim)

    def forward(self, x, mask=None):
        n, length, dim = x.shape
        qkv = self.qkv(x).reshape(n, length, 3, self.heads, dim // self.heads)
        q, k, v = qkv.transpose(2, 0, 3, 1, 4)
        scores = F.matmul(q, k.transpose(0, 1, 3, 2)) * self.scale
        if mask is not None:
            scores = F.where(F.broadcast_to(mask, scores.shape), scores, F.full_like(scores, -1e9))
        x = F.matmul(F.softmax(scores, axis=-1), v)
        return self.proj(x.transpose(0, 2, 1, 3).reshape(n, length, dim))


class EncoderLayer(M.Module):
    def __init__(self, dim=8, heads=2, hidden=16, norm_first=True):
        super().__init__()
        self.attn, self.norm1, self.norm2 = Attention(dim, heads), M.LayerNorm(dim), M.LayerNorm(dim)
        self.mlp = M.Sequential(M.Linear(dim, hidden), M.GELU(), M.Dropout(0.1), M.Linear(hidden, dim))
        self.norm_first = norm_first

    def forward(self, x, mask=None):
        if self.norm_first:
            x = x + self.attn(self.norm1(x), mask)
            return x + self.mlp(self.norm2(x))
        x = self.norm1(x + self.attn(x, mask=mask))
        return self.norm2(x + self.mlp(x))


class ViT(M.Module):
    def __init__(self, dim=8):
        super().__init__()
        self.patch_embed = M.Conv2d(3, dim, 4, 4)
        self.cls_token = Parameter(np.full((1, 1, dim), 0.1, np.float32))
        self.pos_embed = Parameter(np.linspace(-1, 1, 5 * dim, dtype=np.float32).reshape(1, 5, dim))
        self.blocks = M.Sequential(EncoderLayer(dim), EncoderLayer(dim))
        self.norm, self.head = M.LayerNorm(dim), M.Linear(dim, 10)

    def forward(self, x):
        x = F.flatten(self.patch_embed(x), 2).transpose(0, 2, 1)
        cls = F.broadcast_to(self.cls_token, (x.shape[0], 1, x.shape[2]))
        x = F.concat([cls, x], axis=1) + self.pos_embed
        return self.head(self.norm(self.blocks(x))[:, 0])


class WindowAttention(M.Module):
    """Swin: windows of a shifted picture, a bias by relative position."""

    def __init__(self, dim=4, window=2):
        super().__init__()
        self.window, self.attn = window, Attention(dim, 2)
        self.table = Parameter(np.linspace(0, 1, 4 * dim, dtype=np.float32).reshape(1, 4, dim))

    def forward(self, x):
        n, h, w, c = x.shape
        m = self.window
        x = F.roll(x, (-1, -1), (1, 2))
        x = x.reshape(n, h // m, m, w // m, m, c).transpose(0, 1, 3, 2, 4, 5).reshape(-1, m * m, c)
        x = self.attn(x + self.table)
        x = x.reshape(n, h // m, w // m, m, m, c).transpose(0, 1, 3, 2, 4, 5).reshape(n, h, w, c)
        return F.roll(x, (1, 1), (1, 2))


class BERT(M.Module):
    def __init__(self, words=11, dim=8, length=5):
        super().__init__()
        self.embeddings = {"word": M.Embedding(words, dim), "position": M.Embedding(length, dim)}
        self.norm = M.LayerNorm(dim)
        self.encoder = [EncoderLayer(dim, norm_first=False) for _ in range(2)]
        self.pooler, self.classifier = M.Linear(dim, dim), M.Linear(dim, 3)
        self.bias = Parameter(np.zeros(words, np.float32))

    def forward(self, input_ids, attention_mask):
        positions = F.arange(input_ids.shape[1]).astype("int32")
        x = self.embeddings["word"](input_ids) + self.embeddings["position"](positions)
        x = self.norm(x)
        mask = F.expand_dims(F.expand_dims(attention_mask, 1), 1) > 0
        for layer in self.encoder:
            x = layer(x, mask)
        words = F.matmul(x, self.embeddings["word"].weight, transpose_b=True) + self.bias  # tied weights
        return {"words": words, "label": self.classifier(F.tanh(self.pooler(x[:, 0, :])))}


class Transformer(M.Module):
    """Encoder and decoder with the package's own attention layer, sinusoidal positions, a causal mask."""

    def __init__(self, dim=8):
        super().__init__()
        self.self_attn, self.cross_attn = M.MultiHeadAttention(dim, 2), M.MultiHeadAttention(dim, 2)
        self.norms = [M.LayerNorm(dim) for _ in range(3)]
        self.fc1, self.fc2 = M.Linear(dim, 12), M.Linear(12, dim)
        angles = np.arange(6)[:, None] / 10000 ** (np.arange(0, dim, 2) / dim)
        self.positions = Tensor(np.stack([np.sin(angles), np.cos(angles)], -1).reshape(6, dim).astype(np.float32))

    def forward(self, source, target):
        memory = source + self.positions[: source.shape[1]]
        x = target + self.positions[: target.shape[1]]
        x = self.norms[0](x + self.self_attn(x, x, x)[0])
        y, weights = self.cross_attn(x, memory, memory, need_weights=True, average_attn_weights=True)
        x = self.norms[1](x + y)
        return self.norms[2](x + self.fc2(F.relu(self.fc1(x)))), weights


class Mixer(M.Module):
    """MLP-Mixer."""

    def __init__(self, tokens=4, dim=6):
        super().__init__()
        self.stem = M.Conv2d(3, dim, 4, 4)
        self.layers = [
            {"norm1": M.LayerNorm(dim), "token": self.mlp(tokens), "norm2": M.LayerNorm(dim), "channel": self.mlp(dim)}
            for _ in range(2)
        ]
        self.head = M.Linear(dim, 10)

    @staticmethod
    def mlp(dim):
        return M.Sequential(M.Linear(dim, 2 * dim), M.GELU(), M.Linear(2 * dim, dim))

    def forward(self, x):
        x = F.transpose(F.flatten(self.stem(x), 2), (0, 2, 1))
        for layer in self.layers:
            y = layer["token"](layer["norm1"](x).transpose(0, 2, 1))
            x = x + y.transpose(0, 2, 1)
            x = x + layer["channel"](layer["norm2"](x))
        return self.head(F.mean(x, axis=1))


class LSTMTagger(M.Module):
    def __init__(self):
        super().__init__()
        self.embed = M.Embedding(9, 6)
        self.lstm = M.LSTM(6, 5, num_layers=2, batch_first=True, bidirectional=True)
        self.out = M.Linear(10, 4)

    def forward(self, tokens):
        x, (h, c) = self.lstm(self.embed(tokens))
        return F.argmax(self.out(x), axis=-1), h, c


class GRUCell(M.Module):
    def __init__(self, size, hidden):
        super().__init__()
        self.hidden = hidden
        self.ih, self.hh = M.Linear(size, 3 * hidden), M.Linear(hidden, 3 * hidden)

    def forward(self, x, h):
        gi, gh = self.ih(x), self.hh(h)
        ir, iz, inn = F.split(gi, 3, axis=1)
        hr, hz, hn = F.split(gh, 3, axis=1)
        r, z = F.sigmoid(ir + hr), F.sigmoid(iz + hz)
        n = F.tanh(inn + r * hn)
        return (1 - z) * n + z * h


class Seq2Seq(M.Module):
    """Cells by hand: an encoder, a decoder with attention that is fed its own words."""

    def __init__(self, words=7, hidden=5, steps=3):
        super().__init__()
        self.steps, self.embed = steps, M.Embedding(words, hidden)
        self.encoder, self.decoder = GRUCell(hidden, hidden), GRUCell(2 * hidden, hidden)
        self.out = M.Linear(hidden, words)

    def forward(self, tokens):
        x = self.embed(tokens)
        h = F.zeros((x.shape[0], self.encoder.hidden))
        states = []
        for t in range(tokens.shape[1]):
            h = self.encoder(x[:, t], h)
            states.append(h)
        memory = F.stack(states, axis=1)
        word, logits = tokens[:, 0], []
        for _ in range(self.steps):
            weights = F.softmax((memory * F.expand_dims(h, 1)).sum(axis=2), axis=1)
            context = F.squeeze(F.matmul(F.expand_dims(weights, 1), memory), 1)
            h = self.decoder(F.concat([self.embed(word), context], axis=1), h)
            logits.append(self.out(h))
            word = F.argmax(logits[-1], axis=1)
        return F.stack(logits, axis=1)


class WaveNet(M.Module):
    """Dilated causal convolutions with gates and skips."""

    def __init__(self, channels=6, layers=3):
        super().__init__()
        self.front = M.Conv1d(1, channels, 1)
        self.gates = [M.Conv1d(channels, 2 * channels, 2, dilation=2**i) for i in range(layers)]
        self.res = [M.Conv1d(channels, channels, 1) for _ in range(layers)]
        self.skip = [M.Conv1d(channels, channels, 1) for _ in range(layers)]
        self.out = M.Conv1d(channels, 4, 1)

    def forward(self, x):
        x, total = self.front(x), 0
        for i, (gate, res, skip) in enumerate(zip(self.gates, self.res, self.skip, strict=True)):
            padded = F.nn.pad(x, ((0, 0), (0, 0), (2**i, 0)), "constant")
            a, b = F.split(gate(padded), 2, axis=1)
            y = F.tanh(a) * F.sigmoid(b)
            total = total + skip(y)
            x = x + res(y)
        return self.out(F.relu(total))


class CRNN(M.Module):
    """A recogniser of text lines: convolutions, then a recurrent layer over columns."""

    def __init__(self):
        super().__init__()
        self.cnn = M.Sequential(M.Conv2d(1, 4, 3, (2, 1), 1), M.BatchNorm2d(4), M.ReLU(), M.MaxPool2d((2, 1)))
        self.rnn = M.RNN(4 * 2, 6, nonlinearity="relu", bidirectional=True)
        self.fc = M.Linear(12, 5)

    def forward(self, image):
        x = self.cnn(image)
        n, c, h, w = x.shape
        x = F.reshape(x, (n, c * h, w)).transpose(2, 0, 1)
        x, _ = self.rnn(x)
        return F.logsoftmax(self.fc(x), axis=2)


class FactorizationMachine(M.Module):
    """Wide and deep over categories and numbers."""

    def __init__(self, sizes=(5, 3, 4), dim=4):
        super().__init__()
        self.tables = [M.Embedding(n, dim) for n in sizes]
        self.wide = [M.Embedding(n, 1) for n in sizes]
        self.deep = M.Sequential(M.LinearBnRelu1d(3 * dim + 2, 8), M.LinearRelu(8, 4), M.Linear(4, 1))

    def forward(self, categories, numbers):
        fields = [table(categories[:, i]) for i, table in enumerate(self.tables)]
        wide = sum(w(categories[:, i]) for i, w in enumerate(self.wide))
        v = F.stack(fields, axis=1)
        pairs = 0.5 * (v.sum(axis=1) ** 2 - (v**2).sum(axis=1)).sum(axis=1, keepdims=True)
        deep = self.deep(F.concat([*fields, numbers], axis=1))
        return F.sigmoid(wide + pairs + deep)


class MixtureOfExperts(M.Module):
    def __init__(self, dim=6, experts=3):
        super().__init__()
        self.gate, self.experts = M.Linear(dim, experts), [M.Linear(dim, dim) for _ in range(experts)]

    def forward(self, x):
        scores = F.softmax(self.gate(x), axis=-1)
        best = F.one_hot(F.argmax(scores, axis=-1), 3).astype("float32")
        scores = scores * best
        outputs = F.stack([expert(x) for expert in self.experts], axis=-1)
        return (outputs * F.expand_dims(scores, 1)).sum(axis=-1), math.sqrt(2) * best.mean(axis=0)


class GraphConvolution(M.Module):
    """Nodes exchange features along a matrix of edges."""

    def __init__(self):
        super().__init__()
        self.lin1, self.lin2 = M.Linear(4, 6), M.Linear(6, 2)

    def forward(self, x, edges):
        degrees = F.sum(edges, axis=1, keepdims=True)
        norm = edges / F.maximum(degrees, 1.0)
        return F.matmul(norm, self.lin2(F.relu(F.matmul(norm, self.lin1(x)))))


def tokens(count, words, *shape):
    return Tensor(np.random.default_rng(count).integers(0, words, shape).astype(np.int32))


def swin():
    return M.Sequential(WindowAttention(), M.LayerNorm(4), WindowAttention())


NETS = {
    "encoder_layer": net_of(EncoderLayer, lambda: (values(2, 5, 8), Tensor(np.tri(5, dtype=bool)[None, None]))),
    "vit": net_of(ViT, picture(8)),
    "swin": net_of(swin, lambda: (values(2, 4, 4, 4),)),
    "bert": net_of(BERT, lambda: (tokens(1, 11, 2, 5), Tensor(np.float32([[1, 1, 1, 0, 0], [1] * 5])))),
    "transformer": net_of(Transformer, lambda: (values(2, 6, 8), values(2, 4, 8))),
    "mixer": net_of(Mixer, picture(8)),
    "lstm_tagger": net_of(LSTMTagger, lambda: (tokens(2, 9, 2, 4),)),
    "seq2seq": net_of(Seq2Seq, lambda: (tokens(3, 7, 2, 4),)),
    "wavenet": net_of(WaveNet, lambda: (values(2, 1, 12),)),
    "crnn": net_of(CRNN, lambda: (values(2, 1, 8, 10),)),
    "wide_and_deep": net_of(FactorizationMachine, lambda: (tokens(4, 3, 6, 3), values(6, 2))),
    "experts": net_of(MixtureOfExperts, lambda: (values(5, 6),)),
    "graph_convolution": net_of(
        GraphConvolution, lambda: (values(5, 4), Tensor(np.float32(np.random.default_rng(0).random((5, 5)) > 0.5)))
    ),
}
