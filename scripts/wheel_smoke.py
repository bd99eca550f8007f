#!/usr/bin/env python3
"""What an installed jax_moye must do on a machine without GPU, driver, CUDA and compiler. Uses jax and numpy alone.

    wheel_smoke.py           of any environment: cibuildwheel runs it after each wheel
    wheel_smoke.py --bare    and there must be no compiler and no CUDA here: scripts/wheel_check.sh

Exit status 1 if one of the checks fails; the others run all the same.
"""

import argparse
import ctypes
import importlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import traceback

os.environ.setdefault("JAX_PLATFORMS", "cpu")

COMPILERS = ["cc", "c++", "gcc", "g++", "clang", "nvcc", "ptxas", "ld", "as", "cmake", "ninja", "make", "nvidia-smi"]


def _command(*arguments):
    """What `python -m jax_moye` prints; -I: not the sources of a folder that it happens to be started in."""
    command = [sys.executable, "-I", "-m", "jax_moye", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "COLUMNS": "120"})
    assert done.returncode == 0, f"{' '.join(arguments)}: {done.stdout}{done.stderr}"
    return done.stdout


def check_bare():
    """Nothing that builds and nothing of CUDA."""
    found = [name for name in COMPILERS if shutil.which(name)]
    assert not found, f"not a bare environment: {found}"
    assert not pathlib.Path("/usr/local/cuda").exists()
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no compiler, no CUDA, no driver"
    raise AssertionError("there is a CUDA driver")


def check_import():
    """Both modules load; neither asks for the driver."""
    start = time.perf_counter()
    import jax_moye

    seconds = time.perf_counter() - start
    folder = pathlib.Path(jax_moye.__file__).parent
    assert folder.parent.name in ("site-packages", "dist-packages"), f"{folder} is not the installed package"
    importlib.import_module("jax_moye._moye_cuda")
    libraries = pathlib.Path("/proc/self/maps").read_text()
    assert "libcuda" not in libraries, "import loads CUDA's libraries"
    import jax

    return f"jax {jax.__version__}, Python {sys.version.split()[0]}, {seconds:.1f} s with jax"


def check_xla():
    """Without a GPU products are XLA's, with derivatives."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    import jax_moye

    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((70, 33)), rng.standard_normal((33, 20))
    d = jax.jit(jax_moye.matmul)(jnp.asarray(x, jnp.float32), jnp.asarray(w, jnp.float32))
    np.testing.assert_allclose(d, x @ w, rtol=0, atol=1e-4)
    gradient = jax.grad(lambda w: jax_moye.matmul(jnp.asarray(x, jnp.float32), w).sum())(jnp.asarray(w, jnp.float32))
    np.testing.assert_allclose(gradient, x.T @ np.ones((70, 20)), rtol=0, atol=1e-4)
    return "70x20x33, and its gradient"


def check_emulator():
    """One row of each kernel, on integers: every sum is exact."""
    import jax.numpy as jnp
    import numpy as np

    import jax_moye
    from jax_moye._kernels.dtypes import numpy_dtype

    rng = np.random.default_rng(0)
    a, b = rng.integers(-3, 4, (72, 64)), rng.integers(-3, 4, (64, 80))
    rows = {}
    for row in jax_moye.configs():
        if row.dtype in ("bf16", "f16", "f32", "tf32", "s8"):
            rows.setdefault(row.kernel, row)
    assert rows, "no row can be run"
    for row in rows.values():
        dtype = numpy_dtype(row.dtype)
        d = jax_moye.matmul(
            jnp.asarray(a, dtype),
            jnp.asarray(b, dtype),
            config=row.name,
            interpret=True,
            preferred_element_type=jnp.int32 if row.dtype == "s8" else jnp.float32,
        )
        np.testing.assert_array_equal(np.asarray(d, np.float64), a @ b, err_msg=row.name)
    return f"{', '.join(rows)}: exact"


def check_own_kernel():
    """A tile of one's own, compiled against the wheel's headers; without a compiler an error that says what to do."""
    import jax.numpy as jnp

    import jax_moye

    path = pathlib.Path(jax_moye.include_dir()) / "gemm" / "simt_tiled.cuh"
    assert path.is_file(), f"{path} is not there"
    os.environ["JAX_MOYE_CACHE_DIR"] = tempfile.mkdtemp()
    config, said = None, ""
    try:
        config = jax_moye.kernel(path, config="{simt_tiled, f32, f32, {64, 64, 16}, 1, {1, 1}, 16}")
    except jax_moye.KernelError as error:
        said = str(error)
    if shutil.which("g++") is None:
        assert "apt-get install g++" in said, said
        return "no compiler, and the error says so"
    assert config is not None, said
    d = jax_moye.matmul(jnp.ones((70, 64)), jnp.ones((64, 80)), config=config, interpret=True)
    assert (d == 64).all(), d
    return f"{config.name}: exact"


def check_lowering():
    """A program for GPUs is made here, with our kernel in it."""
    import jax
    import jax.numpy as jnp

    import jax_moye

    x = jax.ShapeDtypeStruct((1024, 1024), jnp.bfloat16)
    product = jax.jit(lambda x: jax_moye.matmul(x, x, implementation="moye"))  # whatever rows there are
    text = product.trace(x).lower(lowering_platforms=("cuda",)).as_text()
    assert "jax_moye_gemm" in text, text
    return "a custom call of ours"


def check_configs():
    """The table of kernels."""
    import jax_moye

    text = _command("configs")
    missing = [row.name for row in jax_moye.configs() if row.name not in text]
    assert not missing, f"{missing} are not in\n{text}"
    built = {row["name"] for row in importlib.import_module("jax_moye._moye_cuda").configs()}
    unknown = [row.name for row in jax_moye.configs() if row.name in built and not row.registers]
    assert built, "no row was compiled by nvcc"
    assert not unknown, f"_registers.json does not have {unknown}"
    return f"{len(jax_moye.configs())} rows"


def check_explain():
    """A GPU that is not here."""
    text = _command("explain", "--shape", "4096x4096x4096:bf16", "--device", "h200")
    assert "h200" in text, text
    assert "computed by" in text, text
    return " ".join(text.splitlines()[1].split())


def check_draw():
    """A layout as text, an instruction as SVG."""
    assert "63" in _command("draw", "(8,8):(8,1)")
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "mma.svg"
        _command("draw", "mma", "SM80_16x8x16_F32BF16BF16F32_TN", "-o", str(path))
        assert path.read_text().startswith("<svg")
    return "text and SVG"


def main():
    """Runs every check and prints a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bare", action="store_true")
    bare = parser.parse_args().bare
    checks = [
        check_import,
        check_xla,
        check_emulator,
        check_own_kernel,
        check_lowering,
        check_configs,
        check_explain,
        check_draw,
    ]
    failed = 0
    for check in [check_bare, *checks] if bare else checks:
        name = check.__name__.removeprefix("check_")
        try:
            print(f"ok      {name:9} {check()}", flush=True)
        except Exception:
            failed += 1
            print(f"FAILED  {name:9} {traceback.format_exc()}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
