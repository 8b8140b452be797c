"""Everything that servers print on their stdout by mistake, between real messages."""

import sys

NOISE = [
    b"Server listening...\n",
    "🚀 ready\n".encode(),
    b"\n",
    b"   \n",
    b"\r\n",
    b"\x1b[32mINFO\x1b[0m started\n",
    b"123\n",
    b'"str"\n',
    b"null\n",
    b"Content-Length: 50\r\n\r\n",
    b'half a line {"lost":1}\n',
    b"\xff\xfe\x00\n",
    b"\x0c\n",
]

out = sys.stdout.buffer
out.write(b'\xef\xbb\xbf{"real":0}\r\n')
for number, noise in enumerate(NOISE, start=1):
    out.write(noise)
    out.write(b' \t{"real":%d}\r\n' % number)
out.write(b"again and again\n" * 1_000)
out.write(b'[{"real":"batch"}]\n[]\n{}\n{"jsonrpc":"2.0"}\n[INFO] no JSON\n')
out.flush()
sys.stdin.read()
