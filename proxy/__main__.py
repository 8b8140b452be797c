"""`python -m proxy` is `mcp-taskproxy`."""

from proxy.cli import main

main()
