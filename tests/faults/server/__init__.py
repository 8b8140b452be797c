"""A legacy server of the bench's own: `tools` is what it does, `stdio` and `http` are how it is reached.

Starts quickly, ends when its stdin does, and writes down (`tests.faults.journal`) what really happened.
"""
