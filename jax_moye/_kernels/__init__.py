"""What there is to choose from: the compiled table, dtypes, GPUs, the FFI targets and the emulator's switch.

Knows the extension modules and JAX's devices. Does not know what a product is, nor which config is good at one.
"""
