"""The fault bench: breaks everything around a running proxy, and checks from outside that it kept its word.

`python -m tests.faults` runs it for long, `test_short.py` for some seconds in every check. A round is a mixed
load and some faults (`plan`, from the seed alone) on a `scene` of proxy, server, relay and disk; what clients
saw (`seen`) and what the server wrote down (`journal`) are then held against the contract (`verdict`).
"""
