"""What a user calls: `matmul`, `dot_general`, `einsum`, `linear`, `intercept`, the options around them, and export.

Knows the arguments of users and JAX's own functions of these names: it checks, normalizes to a contraction, and binds a
primitive. Does not know which kernel computes it, nor that there are several. Its public names are those of
`jax_moye/__init__.py`.
"""
