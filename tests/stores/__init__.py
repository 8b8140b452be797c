"""Tests of where tasks are kept."""
