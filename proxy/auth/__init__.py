"""Who clients are, and in whose name requests go to the server: tokens, challenges, credentials.

`downstream` asks the gate before it reads a body; `assembly` makes the parts. May import `owners`, `protocol`
and the section `auth` of the configuration.
"""
