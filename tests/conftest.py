"""Settings of all tests."""

import gc
import os
from importlib import metadata

# Before NumPy is imported. As many test processes run as there are cores, and OpenBLAS' threads spin while they wait.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Before JAX is imported. Compiling takes most of the time of tests' programs, which run once: on the CPU XLA then makes
# LLVM's code itself, not through MLIR, and all of it at once. A jaxlib that does not know a flag ends the process.
FLAGS = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
if metadata.version("jaxlib").startswith("0.10."):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FLAGS}".strip()


def pytest_collection_finish():
    """The tests themselves are no garbage: the collector need not look at tens of thousands of them again and again."""
    gc.freeze()
