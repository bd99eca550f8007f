"""The environment of Python programs that tests start: what they compile is made quickly, and once for all of them."""

import os
import pathlib
from importlib import metadata

# What tests start runs a few times: XLA's optimizations of the CPU's code take longer than they save.
# The kernels are not XLA's code. A jaxlib that does not know a flag ends the process.
_QUICK = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"


def environment(cache: os.PathLike | str, *paths: os.PathLike | str) -> dict[str, str]:
    """os.environ with XLA's flags, and a folder in which JAX finds what a program before compiled, of the same code.

    Args:
      cache: the folder; of one test run, as the package's own code is no part of the keys.
      *paths: folders from which the program imports, before those of PYTHONPATH.
    """
    path = os.pathsep.join([*map(str, paths), os.environ.get("PYTHONPATH", "")])
    environ = {**os.environ, "PYTHONPATH": path, "JAX_COMPILATION_CACHE_DIR": str(pathlib.Path(cache).absolute())}
    environ |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}
    if metadata.version("jaxlib").startswith("0.10."):
        environ["XLA_FLAGS"] = " ".join(filter(None, (os.environ.get("XLA_FLAGS", ""), _QUICK)))
    return environ
