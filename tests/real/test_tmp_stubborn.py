from __future__ import annotations
import signal, anyio, pytest
from proxy.protocol import names
from tests.real.stdio_process import SMALL_SERVER, StdioProcess, proxied
pytestmark = pytest.mark.anyio

@pytest.mark.parametrize("legacy", [True, False])
@pytest.mark.parametrize("order", [0, 1])
async def test_stubborn(tmp_path, legacy, order):
    async with StdioProcess(proxied([*SMALL_SERVER, "--stubborn"]), tmp_path) as probe:
        await (probe.initialize() if legacy else probe.ask_modern(names.DISCOVER))
        if order:
            probe.close_stdin()
            probe.send_signal(signal.SIGTERM)
        else:
            probe.send_signal(signal.SIGTERM)
            probe.close_stdin()
        with anyio.move_on_after(1):
            while probe._process.poll() is None:
                await anyio.sleep(0.02)
        print("code", probe._process.poll())
        probe.send_signal(signal.SIGKILL)
        await probe.nothing_is_left(within_s=1)
