"""Programs that use the proxy from an environment of their own; see tests/venvs."""
