"""The benchmark and the ladder: our kernels against XLA and others, and against each other, on named workloads.

Knows workloads, contenders and result files. Nothing outside `jax_moye/__main__.py` imports it.
"""
