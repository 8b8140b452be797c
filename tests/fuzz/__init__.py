"""Mutated requests at both entrances: `mutants` makes them, `entrances` sends them and judges the answers.

A short run is a test; a long one: `python -m tests.fuzz --requests 10000`.
"""
