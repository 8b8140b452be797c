"""What a task is: its record, its states, its policy, its questions, its two renderings.

PURE: `now`, ids and keys arrive as arguments. Imports `proxy.errors` and `proxy.protocol` alone;
`stores` and `routing` import it.
"""
