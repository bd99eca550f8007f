"""Settings of all tests."""

import gc
import os
from importlib import metadata

# Before NumPy is imported. As many test processes run as there are cores, and OpenBLAS' threads spin while they wait.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Before JAX is imported. Compiling takes most of the time of tests' programs, which run once: XLA makes the CPU's code
# all at once then, and writes what is fused in LLVM's language at once, not by passes of MLIR, which take several times
# as long as all else. What is fused stays. A jaxlib that does not know a flag ends the process.
if metadata.version("jaxlib").startswith("0.10."):
    flags = ("--xla_cpu_parallel_codegen_split_count=1", "--xla_cpu_use_fusion_emitters=false")
    os.environ["XLA_FLAGS"] = " ".join(filter(None, (os.environ.get("XLA_FLAGS", ""), *flags)))


def pytest_collection_finish():
    """The tests themselves are no garbage: the collector need not look at tens of thousands of them again and again."""
    gc.freeze()
