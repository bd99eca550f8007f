"""Saying it: the products of a program, the decision for each, in words, tables, HTML and JSON.

Knows how to read decisions and jaxprs. Decides nothing: what it says is what the lowering was told. It
imports from `_api` and all rooms below, and from `_timing`; `_tune` and `_bench` import from it.
"""
