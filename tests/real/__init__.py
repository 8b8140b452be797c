"""Real servers, real clients, real kills: the proxy as a process, judged from outside."""
