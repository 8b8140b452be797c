"""Tests of `proxy.eras`."""
