"""What MCP says: names, JSON-RPC messages, raw JSON, framing, signed state.

PURE: no await, clock, randomness, environment or socket. Anybody may import it; it imports
`proxy.errors` alone.
"""
