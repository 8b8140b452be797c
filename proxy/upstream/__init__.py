"""Facing servers: calls turned into bytes, bytes into answers.

`base.py` is the seam for `routing` and between the parts in here. `stdio` and `http` move bytes;
`session` speaks the legacy protocol over either; `pending` knows which call is waiting for what;
`pool` keeps sessions apart by owner and capabilities. Imports `protocol`, `eras`, `owners`, `config`.
"""
