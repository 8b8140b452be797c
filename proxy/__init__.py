"""mcp-taskproxy: puts tasks in front of an MCP server that has none.

A message travels down this list, its answer travels up:

    cli, config, app      start; `app` alone wires everything
    downstream            facing clients: bytes <-> messages
    routing               what happens to a message
    upstream              facing servers: calls <-> bytes
    stores                where tasks live
    tasks                 PURE  what a task is
    eras                  PURE  two eras of the protocol and the way between
    protocol              PURE  what MCP says
    owners, errors, logs, metrics, clock

`tests/test_layers.py` holds who may import whom against the source.
"""

__version__ = "0.1.0"
