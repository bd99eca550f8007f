"""Measuring which config is the fastest at a product, and keeping it: `jax_moye.tune`, `python -m jax_moye tune`.

Knows the products of a program, the candidates and the file of measurements that a selection reads. Does not know how
time is taken, which is `_timing`'s.
"""
