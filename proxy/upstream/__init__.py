"""Facing servers: calls turned into bytes, bytes into answers.

`base.py` is the seam for `routing` and between the parts in here. `stdio`, `http` and `sse` move bytes.
`session` speaks the legacy protocol over each of them: `inbox` understands what comes, `pending` knows
which call is waiting for what, `questions` whose question it is that the server asks, `settings` and
`catalogue` what the session was told and has told. `pool` keeps sessions apart by owner and capabilities.
Imports `protocol`, `eras`, `owners`, `config`.
"""
