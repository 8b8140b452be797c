"""A long run by hand, which says what it saw: `python -m tests.fuzz [--requests N] [--lines N]`."""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from pathlib import Path

from tests.fuzz.scene import http_proxy, measured, stdio_proxy


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--lines", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    said = parser.parse_args()
    print(f"seed {said.seed}")
    with tempfile.TemporaryDirectory(prefix="fuzz-") as home:
        began = time.monotonic()
        with http_proxy(Path(home)) as proxy:
            print(measured(proxy, said.requests, said.seed))
        print(f"HTTP: {time.monotonic() - began:.0f} s")
        began = time.monotonic()
        print(stdio_proxy(Path(home), said.lines, said.seed))
        print(f"stdio: {time.monotonic() - began:.0f} s")


main()
