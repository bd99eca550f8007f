"""What there is to choose from: the compiled table, a kernel of one's own, dtypes, GPUs, the FFI targets, the emulator.

Knows the extension modules, compilers and JAX's devices. Does not know what a product is, nor which config is good at
one.
"""
