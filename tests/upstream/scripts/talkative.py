"""Writes 1 MB of KIND to stderr before it gives a line back."""

import sys

KINDS = {
    "lines": b"a line of sixty-four bytes, as servers write them in their logs\n" * 16_384,
    "no newline": b"progress... " * 87_382,
    "invalid UTF-8": b"\xff\xfe\xc3(\xed\xa0\x80\n" * 131_072,
}

for line in sys.stdin.buffer:
    sys.stderr.buffer.write(KINDS[sys.argv[1]])
    sys.stderr.buffer.write(b"the very last words")
    sys.stderr.buffer.flush()
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
