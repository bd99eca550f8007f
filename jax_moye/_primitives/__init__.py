"""How JAX sees a product: the primitives, their derivatives, batching, sharding and lowering.

Knows JAX's rules and the custom call's attributes. Which kernel a call names, or that XLA computes the product, it asks
`_selection`. Does not know who bound a primitive, nor what a kernel is made of. It imports
from `_selection` and `_kernels`.
"""
