"""Tests. `tests/` mirrors `proxy/`; `tests/real/` holds real servers, clients and kills."""
