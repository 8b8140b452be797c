"""Two eras of the protocol and the way between.

PURE. `modern` is MCP 2026-07-28 (per-request `_meta`, no sessions), `legacy` everything before it
(initialize, sessions, requests from the server). `era` tells them apart, `to_modern` and `to_legacy`
translate, `capabilities` says who can answer what. Imports `proxy.protocol` and `proxy.errors` alone.
"""
