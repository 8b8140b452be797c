"""Tests of `proxy.downstream`."""
