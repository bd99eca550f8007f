"""Programs as other people write them, for `python -m jax_moye bench --program`, beside those that are built in.

    PYTHONPATH=benchmarks python -m jax_moye bench --program programs:gpt2 --program programs:llama --size layers=4

All but phi3 were written before `optimize` had seen one, and what it missed in them was then added: section 22 of
docs/performance.md has both figures. No GPU has timed gemma and translation yet. They differ in what real
programs differ in: how a mask is made, how a softmax is written, where float32 begins, grouped queries, which weights
are one array, scans with and without recomputation, the optimizer. Each function returns (step, arguments); sizes are
its keywords. `SMALL` has sizes for a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Program = tuple[Callable[..., Any], tuple[Any, ...]]

SMALL: Mapping[str, Mapping[str, int]] = {
    "gpt2": {"layers": 2, "width": 256, "heads": 4, "vocabulary": 509, "batch": 2, "tokens": 256},
    "bert": {"layers": 2, "width": 256, "heads": 4, "vocabulary": 512, "batch": 4, "tokens": 256},
    "llama": {"layers": 2, "width": 512, "heads": 8, "kv_heads": 4, "inner": 512, "vocabulary": 512, "tokens": 256},
    "llama_prefill": {"layers": 2, "width": 512, "heads": 8, "kv_heads": 4, "inner": 512, "vocabulary": 512}
    | {"tokens": 512},
    "llama_decoding": {"layers": 2, "width": 512, "heads": 8, "kv_heads": 4, "inner": 512, "vocabulary": 512}
    | {"batch": 8, "cached": 2048},
    "diffusion_transformer": {"layers": 2, "width": 256, "heads": 4, "batch": 8, "tokens": 256},
    "gemma": {"layers": 2, "width": 256, "heads": 4, "kv_heads": 2, "inner": 512, "vocabulary": 512}
    | {"batch": 2, "tokens": 256},
    "phi3": {"layers": 2, "width": 512, "heads": 8, "kv_heads": 4, "inner": 512, "vocabulary": 512}
    | {"batch": 2, "tokens": 256},
    "translation": {"layers": 2, "width": 256, "heads": 4, "vocabulary": 512, "batch": 2, "tokens": 256},
    "linear_layers": {"layers": 2, "width": 256, "batch": 256},
}


class Random:
    """Normal random arrays, the same ones in every run."""

    def __init__(self) -> None:
        """Begins with the first one."""
        self._keys = self._split()

    @staticmethod
    def _split() -> Iterator[Any]:
        key = jax.random.key(0)
        while True:
            key, one = jax.random.split(key)
            yield one

    def normal(self, *shape: int) -> Any:
        """Data, in bfloat16."""
        return jax.random.normal(next(self._keys), shape, jnp.bfloat16)

    def weight(self, *shape: int) -> Any:
        """Parameters, in float32."""
        return 0.02 * jax.random.normal(next(self._keys), shape, jnp.float32)

    def integers(self, below: int, *shape: int) -> Any:
        """Such as tokens."""
        return jax.random.randint(next(self._keys), shape, 0, below)


def narrow(tree: Any) -> Any:
    """All arrays in bfloat16."""
    return jax.tree.map(lambda x: x.astype(jnp.bfloat16), tree)


def adam(loss: Callable[..., Any], parameters: Any, *data: Any) -> Program:
    """A step of Adam on parameters of float32, of which the loss gets copies in bfloat16."""

    def step(parameters: Any, first: Any, second: Any, count: Any, *data: Any) -> Any:
        value, gradients = jax.value_and_grad(lambda p: loss(narrow(p), *data))(parameters)
        count = count + 1
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradients)
        second = jax.tree.map(lambda v, g: 0.95 * v + 0.05 * g * g, second, gradients)

        def updated(p: Any, m: Any, v: Any) -> Any:
            return p - 3e-4 * (m / (1 - 0.9**count) / (jnp.sqrt(v / (1 - 0.95**count)) + 1e-8) + 0.1 * p)

        return jax.tree.map(updated, parameters, first, second), first, second, count, value

    zeros = jax.tree.map(jnp.zeros_like, parameters)
    return step, (parameters, zeros, jax.tree.map(jnp.zeros_like, parameters), jnp.float32(0), *data)


def momentum(loss: Callable[..., Any], parameters: Any, *data: Any) -> Program:
    """A step of gradient descent with momentum, all in bfloat16."""

    def step(parameters: Any, velocity: Any, *data: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(parameters, *data)
        velocity = jax.tree.map(lambda m, g: 0.9 * m + g, velocity, gradients)
        return jax.tree.map(lambda p, m: p - 0.01 * m, parameters, velocity), velocity, value

    return step, (narrow(parameters), jax.tree.map(jnp.zeros_like, narrow(parameters)), *data)


def layer_norm(x: Any, scale: Any, bias: Any) -> Any:
    """In float32."""
    wide = x.astype(jnp.float32)
    mean = wide.mean(-1, keepdims=True)
    variance = ((wide - mean) ** 2).mean(-1, keepdims=True)
    return ((wide - mean) / jnp.sqrt(variance + 1e-5) * scale + bias).astype(x.dtype)


def rms_norm(x: Any, scale: Any) -> Any:
    """In float32 but for the scale."""
    wide = x.astype(jnp.float32)
    return (wide * lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-5)).astype(x.dtype) * scale


def cross_entropy(logits: Any, labels: Any) -> Any:
    """The mean over all positions."""
    logarithms = jax.nn.log_softmax(logits.astype(jnp.float32))
    return -jnp.take_along_axis(logarithms, labels[..., None], -1).mean()


def linear(x: Any, layer: Any) -> Any:
    """With a bias."""
    weight, bias = layer
    return x @ weight + bias


def gpt2(
    layers: int = 6, width: int = 1024, heads: int = 16, vocabulary: int = 50257, batch: int = 8, tokens: int = 1024
) -> Program:
    """GPT-2, a step of training: LayerNorm, biases, a mask by tril, an odd vocabulary, a tied head, Adam."""
    random = Random()

    def dense(m: int, n: int) -> Any:
        return random.weight(m, n), jnp.zeros(n)

    norm = (jnp.ones(width), jnp.zeros(width))
    blocks = [
        {"norms": (norm, norm), "qkv": dense(width, 3 * width), "out": dense(width, width)}
        | {"up": dense(width, 4 * width), "down": dense(4 * width, width)}
        for _ in range(layers)
    ]
    parameters = {"tokens": random.weight(vocabulary, width), "places": random.weight(tokens, width)}
    parameters |= {"blocks": blocks, "norm": norm}

    def attention(x: Any, block: Any) -> Any:
        b, t, _ = x.shape
        parts = jnp.split(linear(x, block["qkv"]), 3, -1)
        q, k, v = (part.reshape(b, t, heads, -1).transpose(0, 2, 1, 3) for part in parts)
        scores = q @ k.transpose(0, 1, 3, 2) / (width // heads) ** 0.5
        scores = jnp.where(jnp.tril(jnp.ones((t, t), bool)), scores, jnp.finfo(scores.dtype).min)
        o = jax.nn.softmax(scores, -1) @ v
        return linear(o.transpose(0, 2, 1, 3).reshape(b, t, width), block["out"])

    def loss(parameters: Any, text: Any) -> Any:
        x = parameters["tokens"][text[:, :-1]] + parameters["places"]
        for block in parameters["blocks"]:
            first, second = block["norms"]
            x = x + attention(layer_norm(x, *first), block)
            x = x + linear(jax.nn.gelu(linear(layer_norm(x, *second), block["up"])), block["down"])
        return cross_entropy(layer_norm(x, *parameters["norm"]) @ parameters["tokens"].T, text[:, 1:])

    return adam(loss, parameters, random.integers(vocabulary, batch, tokens + 1))


def bert(
    layers: int = 8, width: int = 1024, heads: int = 16, vocabulary: int = 30522, batch: int = 32, tokens: int = 512
) -> Program:
    """BERT, a step of training: texts of different lengths, norms behind, exact gelu, momentum in bfloat16."""
    random = Random()
    norm = (jnp.ones(width), jnp.zeros(width))

    def dense(m: int, n: int) -> Any:
        return random.weight(m, n), jnp.zeros(n)

    blocks = [
        {name: dense(width, width) for name in ("q", "k", "v", "out")}
        | {"up": dense(width, 4 * width), "down": dense(4 * width, width), "norms": (norm, norm)}
        for _ in range(layers)
    ]
    parameters = {"tokens": random.weight(vocabulary, width), "places": random.weight(tokens, width), "blocks": blocks}

    def loss(parameters: Any, text: Any, lengths: Any, labels: Any) -> Any:
        x = parameters["tokens"][text] + parameters["places"]
        mask = (jnp.arange(text.shape[1])[None, :] < lengths[:, None])[:, None, None, :]
        for block in parameters["blocks"]:
            q, k, v = (linear(x, block[name]).reshape(*x.shape[:2], heads, -1) for name in "qkv")
            o = jax.nn.dot_product_attention(q, k, v, mask=mask).reshape(x.shape)
            x = layer_norm(x + linear(o, block["out"]), *block["norms"][0])
            inner = jax.nn.gelu(linear(x, block["up"]), approximate=False)
            x = layer_norm(x + linear(inner, block["down"]), *block["norms"][1])
        return cross_entropy(x @ parameters["tokens"].T, labels)

    text = random.integers(vocabulary, batch, tokens)
    lengths = tokens // 4 + random.integers(tokens - tokens // 4, batch)
    return momentum(loss, parameters, text, lengths, random.integers(vocabulary, batch, tokens))


def rotated(x: Any, places: Any) -> Any:
    """Rotary embeddings of (batch, tokens, heads, width of a head), in float32."""
    half = x.shape[-1] // 2
    angles = places[..., None] * (10000.0 ** (-jnp.arange(half) / half))
    cos, sin = jnp.cos(angles)[:, :, None], jnp.sin(angles)[:, :, None]
    a, b = jnp.split(x.astype(jnp.float32), 2, -1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x.dtype)


class Llama:
    """A Llama with grouped queries; its layers are stacked."""

    def __init__(self, layers: int, width: int, heads: int, kv_heads: int, inner: int, vocabulary: int) -> None:
        """Makes its parameters, in float32."""
        self.heads, self.kv_heads, self.head_dim, self.random = heads, kv_heads, width // heads, Random()
        of_heads = {"q": heads, "k": kv_heads, "v": kv_heads}
        weight = self.random.weight
        blocks = {name: weight(layers, width, count * self.head_dim) for name, count in of_heads.items()}
        blocks |= {"out": weight(layers, heads * self.head_dim, width), "gate": weight(layers, width, inner)}
        blocks |= {"up": weight(layers, width, inner), "down": weight(layers, inner, width)}
        blocks |= {"norms": (jnp.ones((layers, width)), jnp.ones((layers, width)))}
        self.parameters = {"tokens": weight(vocabulary, width), "head": weight(width, vocabulary)}
        self.parameters |= {"blocks": blocks, "norm": jnp.ones(width)}

    def projected(self, x: Any, block: Any, places: Any) -> tuple[Any, Any, Any]:
        """Queries, keys and values, (batch, tokens, heads, width of a head)."""
        h = rms_norm(x, block["norms"][0])
        q, k, v = (
            (h @ block[name]).reshape(*x.shape[:2], heads, self.head_dim)
            for name, heads in (("q", self.heads), ("k", self.kv_heads), ("v", self.kv_heads))
        )
        return rotated(q, places), rotated(k, places), v

    def gated(self, x: Any, block: Any) -> Any:
        """The layers behind attention."""
        h = rms_norm(x, block["norms"][1])
        return x + (jax.nn.silu(h @ block["gate"]) * (h @ block["up"])) @ block["down"]

    def attention(self, q: Any, k: Any, v: Any, mask: Any, low: float) -> Any:
        """By two contractions and a softmax, with scores of float32."""
        q = q.reshape(*q.shape[:2], self.kv_heads, -1, self.head_dim)
        scores = jnp.einsum("btkgh,bskh->bkgts", q, k, preferred_element_type=jnp.float32) * self.head_dim**-0.5
        shares = jax.nn.softmax(jnp.where(mask, scores, low), axis=-1).astype(q.dtype)
        return jnp.einsum("bkgts,bskh->btkgh", shares, v).reshape(*q.shape[:2], -1)


def llama(
    layers: int = 8,
    width: int = 2048,
    heads: int = 16,
    kv_heads: int = 4,
    inner: int = 5632,
    vocabulary: int = 32000,
    batch: int = 4,
    tokens: int = 2048,
    recomputed: int = 1,
) -> Program:
    """Llama, a step of training: grouped queries, a scan over layers, recomputed or not, scores of float32, Adam."""
    model = Llama(layers, width, heads, kv_heads, inner, vocabulary)
    places = jnp.broadcast_to(jnp.arange(tokens, dtype=jnp.float32), (batch, tokens))

    def block_of(x: Any, block: Any) -> Any:
        q, k, v = model.projected(x, block, places)
        mask = jnp.arange(tokens)[:, None] >= jnp.arange(tokens)[None, :]
        return model.gated(x + model.attention(q, k, v, mask, -jnp.inf) @ block["out"], block), None

    def loss(parameters: Any, text: Any) -> Any:
        block = jax.checkpoint(block_of) if recomputed else block_of
        x, _ = lax.scan(block, parameters["tokens"][text[:, :-1]], parameters["blocks"])
        return cross_entropy(rms_norm(x, parameters["norm"]) @ parameters["head"], text[:, 1:])

    return adam(loss, model.parameters, model.random.integers(vocabulary, batch, tokens + 1))


def llama_prefill(
    layers: int = 8,
    width: int = 4096,
    heads: int = 32,
    kv_heads: int = 8,
    inner: int = 14336,
    vocabulary: int = 32000,
    batch: int = 1,
    tokens: int = 4096,
) -> Program:
    """Llama reads a text: jax.nn.dot_product_attention, a scan over layers that returns keys and values."""
    model = Llama(layers, width, heads, kv_heads, inner, vocabulary)
    places = jnp.broadcast_to(jnp.arange(tokens, dtype=jnp.float32), (batch, tokens))

    def block_of(x: Any, block: Any) -> Any:
        q, k, v = model.projected(x, block, places)
        o = jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(*x.shape[:2], -1)
        return model.gated(x + o @ block["out"], block), (k, v)

    def step(parameters: Any, text: Any) -> Any:
        x, caches = lax.scan(block_of, parameters["tokens"][text], parameters["blocks"])
        return rms_norm(x[:, -1], parameters["norm"]) @ parameters["head"], caches

    return step, (narrow(model.parameters), model.random.integers(vocabulary, batch, tokens))


def llama_decoding(
    layers: int = 16,
    width: int = 2048,
    heads: int = 32,
    kv_heads: int = 8,
    inner: int = 8192,
    vocabulary: int = 32000,
    batch: int = 8,
    cached: int = 2048,
) -> Program:
    """Llama writes a token: caches of a fixed size, of which a mask leaves out what is behind the position."""
    model = Llama(layers, width, heads, kv_heads, inner, vocabulary)
    parameters = narrow(model.parameters)
    parameters["blocks"] = [jax.tree.map(lambda x, i=i: x[i], parameters["blocks"]) for i in range(layers)]
    shape = batch, cached, kv_heads, model.head_dim
    caches = [(model.random.normal(*shape), model.random.normal(*shape)) for _ in range(layers)]

    def step(parameters: Any, caches: Any, text: Any, position: Any) -> Any:
        x, new = parameters["tokens"][text][:, None], []
        places = jnp.broadcast_to(position.astype(jnp.float32), (text.shape[0], 1))
        mask = jnp.arange(cached) <= position
        for block, (keys, values) in zip(parameters["blocks"], caches, strict=True):
            q, k, v = model.projected(x, block, places)
            keys = lax.dynamic_update_slice(keys, k, (0, position, 0, 0))
            values = lax.dynamic_update_slice(values, v, (0, position, 0, 0))
            new.append((keys, values))
            o = model.attention(q, keys, values, mask, jnp.finfo(jnp.float32).min)
            x = model.gated(x + o @ block["out"], block)
        return (rms_norm(x[:, 0], parameters["norm"]) @ parameters["head"]).astype(jnp.float32), new

    return step, (parameters, caches, jnp.arange(batch), jnp.int32(cached - 8))


def diffusion_transformer(
    layers: int = 8, width: int = 1152, heads: int = 16, batch: int = 32, tokens: int = 256
) -> Program:
    """A diffusion transformer, a step of training: norms with scales of a condition, heads of 72 elements, Adam."""
    random = Random()
    blocks = [
        {"condition": random.weight(width, 6 * width), "qkv": random.weight(width, 3 * width)}
        | {"out": random.weight(width, width), "up": (random.weight(width, 4 * width), jnp.zeros(4 * width))}
        | {"down": (random.weight(4 * width, width), jnp.zeros(width))}
        for _ in range(layers)
    ]

    def norm(x: Any) -> Any:
        wide = x.astype(jnp.float32)
        centred = wide - wide.mean(-1, keepdims=True)
        return (centred * lax.rsqrt(wide.var(-1, keepdims=True) + 1e-6)).astype(x.dtype)

    def loss(blocks: Any, x: Any, condition: Any, target: Any) -> Any:
        for block in blocks:
            of_rows = jnp.split((jax.nn.silu(condition) @ block["condition"])[:, None], 6, -1)
            h = norm(x) * (1 + of_rows[0]) + of_rows[1]
            qkv = (h @ block["qkv"]).reshape(*x.shape[:2], 3, heads, -1)
            q, k, v = qkv[:, :, 0] * (width // heads) ** -0.5, qkv[:, :, 1], qkv[:, :, 2]
            scores = jnp.einsum("bthd,bshd->bhts", q, k).astype(jnp.float32)
            o = jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores).astype(x.dtype), v).reshape(x.shape)
            x = x + of_rows[2] * (o @ block["out"])
            h = norm(x) * (1 + of_rows[3]) + of_rows[4]
            x = x + of_rows[5] * linear(jax.nn.gelu(linear(h, block["up"])), block["down"])
        return ((x - target).astype(jnp.float32) ** 2).mean()

    x, target = random.normal(batch, tokens, width), random.normal(batch, tokens, width)
    return adam(loss, blocks, x, random.normal(batch, width), target)


def gemma(
    layers: int = 8,
    width: int = 2048,
    heads: int = 16,
    kv_heads: int = 4,
    inner: int = 8192,
    vocabulary: int = 32000,
    batch: int = 4,
    tokens: int = 2048,
) -> Program:
    """Gemma, a step of training: a mask by places, groups and heads one dimension in the softmax, a scan, momentum."""
    model = Llama(layers, width, heads, kv_heads, inner, vocabulary)

    def loss(parameters: Any, text: Any, places: Any) -> Any:
        mask = places[:, None, :] <= places[:, :, None]

        def block_of(x: Any, block: Any) -> Any:
            q, k, v = model.projected(x, block, places.astype(jnp.float32))
            q = (q * model.head_dim**-0.5).reshape(*q.shape[:2], kv_heads, -1, model.head_dim)
            logits = jnp.einsum("BTKGH,BSKH->BTKGS", q, k).reshape(*x.shape[:2], heads, -1)
            shares = jax.nn.softmax(jnp.where(mask[:, :, None], logits, -2.3819763e38)).astype(k.dtype)
            shares = shares.reshape(*x.shape[:2], kv_heads, heads // kv_heads, -1)
            o = jnp.einsum("BTKGS,BSKH->BTKGH", shares, v).reshape(x.shape)
            x = x + o @ block["out"]
            h = rms_norm(x, block["norms"][1])
            return x + (jax.nn.gelu(h @ block["gate"]) * (h @ block["up"])) @ block["down"], None

        x, _ = lax.scan(block_of, parameters["tokens"][text[:, :-1]] * width**0.5, parameters["blocks"])
        return cross_entropy(rms_norm(x, parameters["norm"]) @ parameters["tokens"].T, text[:, 1:])

    text = model.random.integers(vocabulary, batch, tokens + 1)
    return momentum(loss, model.parameters, text, jnp.tile(jnp.arange(tokens), (batch, 1)))


def phi3(
    layers: int = 8,
    width: int = 3072,
    heads: int = 24,
    kv_heads: int = 8,
    inner: int = 8192,
    vocabulary: int = 32064,
    batch: int = 4,
    tokens: int = 2048,
) -> Program:
    """Phi-3, a step of training: one product for queries, keys and values, and one for a gate and what it is for."""
    random, head_dim = Random(), width // heads
    blocks = [
        {"norms": (jnp.ones(width), jnp.ones(width)), "qkv": random.weight(width, (heads + 2 * kv_heads) * head_dim)}
        | {"out": random.weight(width, width), "gate_up": random.weight(width, 2 * inner)}
        | {"down": random.weight(inner, width)}
        for _ in range(layers)
    ]
    parameters = {"tokens": random.weight(vocabulary, width), "head": random.weight(width, vocabulary)}
    parameters |= {"blocks": blocks, "norm": jnp.ones(width)}
    places = jnp.broadcast_to(jnp.arange(tokens, dtype=jnp.float32), (batch, tokens))

    def attention(x: Any, block: Any) -> Any:
        parts = jnp.split(x @ block["qkv"], [heads * head_dim, (heads + kv_heads) * head_dim], -1)
        q, k, v = (part.reshape(batch, tokens, -1, head_dim) for part in parts)
        q, k = rotated(q, places), rotated(k, places)
        return jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(x.shape) @ block["out"]

    def loss(parameters: Any, text: Any) -> Any:
        x = parameters["tokens"][text[:, :-1]]
        for block in parameters["blocks"]:
            x = x + attention(rms_norm(x, block["norms"][0]), block)
            gate, up = jnp.split(rms_norm(x, block["norms"][1]) @ block["gate_up"], 2, -1)
            x = x + (up * jax.nn.silu(gate)) @ block["down"]
        return cross_entropy(rms_norm(x, parameters["norm"]) @ parameters["head"], text[:, 1:])

    return adam(loss, parameters, random.integers(vocabulary, batch, tokens + 1))


def translation(
    layers: int = 6, width: int = 1024, heads: int = 16, vocabulary: int = 32000, batch: int = 16, tokens: int = 512
) -> Program:
    """A text is translated, a step of training: two stacks, biases of masks that are added, scores of float32, Adam."""
    random = Random()

    def stack(*names: str) -> Any:
        blocks = {f"{name}{x}": random.weight(layers, width, width) for name in names for x in "qkvo"}
        blocks |= {"up": random.weight(layers, width, 4 * width), "down": random.weight(layers, 4 * width, width)}
        return blocks | {"norms": jnp.ones((len(names) + 1, layers, width)).swapaxes(0, 1)}

    parameters = {"tokens": random.weight(vocabulary, width), "norm": jnp.ones(width)}
    parameters |= {"reads": stack("own"), "writes": stack("own", "other")}

    def attention(name: str, x: Any, others: Any, block: Any, bias: Any) -> Any:
        q, k, v = (y @ block[name + n] for y, n in ((x, "q"), (others, "k"), (others, "v")))
        q, k, v = (y.reshape(*y.shape[:2], heads, -1) for y in (q / (width // heads) ** 0.5, k, v))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q.astype(jnp.float32), k.astype(jnp.float32)) + bias
        shares = jax.nn.softmax(scores).astype(x.dtype)
        return jnp.einsum("bhqk,bkhd->bqhd", shares, v).reshape(x.shape) @ block[name + "o"]

    def inner(x: Any, block: Any) -> Any:
        return x + jax.nn.relu(rms_norm(x, block["norms"][-1]) @ block["up"]) @ block["down"]

    def loss(parameters: Any, text: Any, other: Any) -> Any:
        def bias_of(mask: Any) -> Any:
            return lax.select(mask > 0, jnp.full(mask.shape, 0.0), jnp.full(mask.shape, -1e10))

        def reads(x: Any, block: Any) -> Any:
            h = rms_norm(x, block["norms"][0])
            return inner(x + attention("own", h, h, block, of_text), block), None

        def writes(y: Any, block: Any) -> Any:
            h = rms_norm(y, block["norms"][0])
            y = y + attention("own", h, h, block, of_other)
            return inner(y + attention("other", rms_norm(y, block["norms"][1]), x, block, of_text), block), None

        padding = lambda x: (x > 0).astype(jnp.float32)[:, None, None, :]  # noqa: E731
        of_text = bias_of(padding(text))
        of_other = bias_of(padding(other[:, :-1]) * jnp.tril(jnp.ones((1, 1, tokens, tokens))))
        x, _ = lax.scan(jax.checkpoint(reads), parameters["tokens"][text], parameters["reads"])
        y, _ = lax.scan(jax.checkpoint(writes), parameters["tokens"][other[:, :-1]], parameters["writes"])
        return cross_entropy(rms_norm(y, parameters["norm"]) @ parameters["tokens"].T, other[:, 1:])

    def padded(length: int) -> Any:
        x = 1 + random.integers(vocabulary - 1, batch, length)
        return jnp.where(jnp.arange(length) < tokens // 4 + random.integers(3 * tokens // 4, batch, 1), x, 0)

    return adam(loss, parameters, padded(tokens), padded(tokens + 1))


def linear_layers(layers: int = 4, width: int = 4096, batch: int = 8192) -> Program:
    """Layers whose activation is the square of relu, a step of training with momentum."""
    random = Random()
    parameters = [(random.weight(width, width), jnp.zeros(width)) for _ in range(layers)]

    def loss(parameters: Any, x: Any, target: Any) -> Any:
        for layer in parameters:
            x = jnp.square(jax.nn.relu(linear(x, layer)))
        return ((x - target).astype(jnp.float32) ** 2).mean()

    return momentum(loss, parameters, random.normal(batch, width), random.normal(batch, width))
