"""Ends in the WAY that it was told, after the first line that it reads."""

import os
import signal
import subprocess
import sys

sys.stdin.buffer.readline()
match sys.argv[1]:
    case "exit":
        sys.stderr.write("\x1b[31mFatal:\x1b[0m no\n  database\n")
        sys.exit(3)
    case "signal":
        os.kill(os.getpid(), signal.SIGKILL)
    case "unfinished":
        os.write(1, b'{"first":1}\n{"last":1}')
    case "close stdout":
        os.close(1)
        signal.pause()
    case "close stdin":
        os.close(0)
        os.write(1, b'{"deaf":1}\n')
        signal.pause()
    case "leave a child":
        os.write(1, b'{"last":1}\n')
        subprocess.Popen(["sleep", "60"])
        os._exit(4)
