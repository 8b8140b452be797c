"""Facing clients: bytes turned into requests, answers into bytes.

`validation` judges a message by the protocol's rules, `base` turns answers and faults into wire, `http`
serves Streamable HTTP, `guard` checks Host, Origin and CORS, `operations` answers `/healthz` and
`/readyz`. Imports `routing`, `owners`, `limits`; never `upstream`.
"""
