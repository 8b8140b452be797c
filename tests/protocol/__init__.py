"""Tests of what MCP says."""
