"""Saying it: the products of a program, the decision for each, in words, tables, HTML and JSON.

Knows how to read decisions and jaxprs. Decides nothing: what it says is what the lowering was told.
"""
