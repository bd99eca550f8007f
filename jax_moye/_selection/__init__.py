"""Which kernel computes a product, and why: from what was asked for to one decision.

Knows the table of configs, the GPU that is meant, how long a config takes and what was measured. Does not know jaxprs,
tracers or MLIR: operands are shapes and dtypes here. Everybody who wants to know who computes a product asks this room.
It imports from `_kernels` and `layout`.
"""
