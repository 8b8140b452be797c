"""Tests of the legacy sessions that the proxy itself holds."""
