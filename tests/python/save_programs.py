"""Writes the saved programs that later versions must load: python tests/python/save_programs.py 0.1.0

Once for each release, with the oldest jax that it supports: later versions of JAX load a program that jax.export saved,
earlier ones do not. Files that are there stay as they are.
"""

import pathlib
import sys

import jax
import jax.numpy as jnp

import jax_moye

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "data" / "exported"
ROW = "sm80_multistage_bf16_64x64x64_s3_a16"


def programs():
    """Name of each kind -> (function, platform): products of bf16 (24, 40) and (40, 16)."""
    return {
        "cpu": (lambda a, b: jax_moye.matmul(a, b, config=ROW, interpret=True), "cpu"),
        "cuda": (lambda a, b: jax_moye.matmul(a, b, config=ROW), "cuda"),
        "layer.cpu": (
            lambda x, w, bias: jax_moye.linear(
                x, w, bias, activation="relu", config=ROW, implementation="moye", interpret=True
            ),
            "cpu",
        ),
    }


def main(version: str) -> None:
    """Saves what is missing of a version."""
    a, b, bias = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((24, 40), (40, 16), (16,)))
    FOLDER.mkdir(exist_ok=True)
    jax.config.update("jax_traceback_in_locations_limit", 0)  # names of this machine's folders
    for name, (fun, platform) in programs().items():
        path = FOLDER / f"{version}.{name}.bin"
        if path.exists():
            continue
        export = jax.export.export(jax.jit(fun), platforms=[platform], disabled_checks=jax_moye.EXPORT_DISABLED_CHECKS)
        operands = (a, b, bias) if name.startswith("layer") else (a, b)
        path.write_bytes(export(*operands).serialize(vjp_order=1))
        print(path.name, path.stat().st_size)


if __name__ == "__main__":
    main(sys.argv[1])
