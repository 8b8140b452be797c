"""Ignores the end of its stdin and SIGTERM, and so does its child; says what it ignores."""

import os
import signal
import sys


def say(text: bytes) -> None:
    os.write(1, b'{"%s":1}\n' % text)


def ignore(name: bytes) -> None:
    signal.signal(signal.SIGTERM, lambda *_: say(name + b" ignores TERM"))


ready, begun = os.pipe()
if os.fork() == 0:
    ignore(b"child")
    os.write(begun, b".")
    while True:
        signal.pause()
ignore(b"parent")
os.read(ready, 1)
say(b"ready")
sys.stdin.read()
say(b"parent ignores the end")
while True:
    signal.pause()
