"""Legacy sessions that the proxy itself holds: which there are, and the event streams of each.

Above: `routing`, whose `session_layer` serves them, and `downstream`. Below: `protocol`, `eras`, `owners`.
Nothing in here knows of servers or sockets. Transports 2025-03-26 ... 2025-11-25; contract section 6.
"""
