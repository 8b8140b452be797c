"""Tests of `proxy.tasks`."""
