"""Servers for the tests in the folder above, each a small program that behaves in one odd way."""
