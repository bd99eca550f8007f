"""The programs that are built in, by name, with their sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from jax_moye._bench.models.images import mlp_mixer, unet_blocks, vision_transformer
from jax_moye._bench.models.parts import Program, Random
from jax_moye._bench.models.transformers import transformer_decoding, transformer_training


class Model(NamedTuple):
    """A program that is built in.

    Attributes:
      about: what it is, in words.
      build: from sizes and a dtype to a step and its arguments.
      sizes: by name, where nothing else is said.
      small: of a trial without a GPU.
    """

    about: str
    build: Callable[..., Program]
    sizes: Mapping[str, int]
    small: Mapping[str, int]

    def make(self, dtype: Any, **sizes: int) -> Program:
        """The step and its arguments.

        Args:
          dtype: of weights and activations.
          **sizes: in place of the usual ones.

        Raises:
          ValueError: it has no such size, or they do not go together.
        """
        for name, size in sizes.items():
            if name not in self.sizes:
                raise ValueError(f"{name} is none of its sizes, which are {', '.join(self.sizes)}")
            if size < 1:
                raise ValueError(f"{name} is {size}, and no size is below 1")
        return self.build(Random(dtype), **{**self.sizes, **sizes})


_TRANSFORMER = {"layers": 8, "width": 2048, "heads": 16, "inner": 5632, "vocabulary": 32000}
_SMALL_TRANSFORMER = {"layers": 2, "width": 32, "heads": 2, "inner": 48, "vocabulary": 64}
_IMAGES = {"classes": 1000, "batch": 128, "image": 224, "patch": 16}
_SMALL_IMAGES = {"classes": 16, "batch": 2, "image": 8, "patch": 2}

MODELS = {
    "transformer_training": Model(
        "a step of training of a transformer: RMSNorm, causal attention, gated layers, each block recomputed",
        transformer_training,
        _TRANSFORMER | {"batch": 8, "tokens": 1024},
        _SMALL_TRANSFORMER | {"batch": 2, "tokens": 16},
    ),
    "transformer_decoding": Model(
        "a step of decoding of the same transformer: one token of each sequence, with a cache of keys and values",
        transformer_decoding,
        _TRANSFORMER | {"batch": 16, "cached": 512},
        _SMALL_TRANSFORMER | {"batch": 4, "cached": 16},
    ),
    "vision_transformer": Model(
        "a step of training of a vision transformer: LayerNorm, biases, gelu, its blocks in a scan",
        vision_transformer,
        {"layers": 12, "width": 768, "heads": 12, "inner": 3072, **_IMAGES},
        {"layers": 2, "width": 32, "heads": 2, "inner": 48, **_SMALL_IMAGES},
    ),
    "mlp_mixer": Model(
        "a step of training of an MLP mixer: layers with biases and gelu over tokens and over channels",
        mlp_mixer,
        {"layers": 12, "width": 768, "inner_tokens": 384, "inner": 3072, **_IMAGES},
        {"layers": 2, "width": 32, "inner_tokens": 24, "inner": 48, **_SMALL_IMAGES},
    ),
    "unet_blocks": Model(
        "blocks of a diffusion U-Net and their gradients: GroupNorm, convolutions, attention to pixels and to a text",
        unet_blocks,
        {
            "blocks": 2,
            "width": 640,
            "heads": 10,
            "groups": 32,
            "batch": 16,
            "image": 32,
            "context": 77,
            "context_width": 768,
            "time_width": 1280,
        },
        {
            "blocks": 1,
            "width": 32,
            "heads": 2,
            "groups": 4,
            "batch": 2,
            "image": 4,
            "context": 5,
            "context_width": 24,
            "time_width": 16,
        },
    ),
}
