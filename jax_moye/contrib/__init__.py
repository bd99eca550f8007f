"""Adapters to other packages. Each module needs its package; importing jax_moye imports none of them."""
