"""A well-behaved server: gives back every line, exits at the end of its stdin."""

import sys

for line in sys.stdin.buffer:
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
