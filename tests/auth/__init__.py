"""Tests of the side in the middle: what happens to a message."""
