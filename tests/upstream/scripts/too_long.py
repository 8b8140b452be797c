"""A good message and the first LIMIT bytes of an endless one in the same write; goes on when told to."""

import os
import sys

first, limit, last = sys.argv[1].encode(), int(sys.argv[2]), sys.argv[3].encode()
os.write(1, b'{"good":1}\n' + first + b"x" * limit)
sys.stdin.readline()
os.write(1, last + b'\n{"good":2}\n')
sys.stdin.read()
