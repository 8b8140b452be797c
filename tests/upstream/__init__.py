"""Tests of the side that faces servers."""
