"""Writes one message of SIZE bytes in steps of STEP bytes, then a short one; waits for its stdin to end."""

import os
import sys

size, step = int(sys.argv[1]), int(sys.argv[2])
head, tail = '{"text":"ü'.encode(), b'"}'
line = head + b"x" * (size - len(head) - len(tail)) + tail + b"\n"
for at in range(0, len(line), step):
    piece = line[at : at + step]
    while piece:
        piece = piece[os.write(1, piece) :]
os.write(1, b'{"next":1}\n')
sys.stdin.read()
