"""The chaos suite as a program: `python -m tests.chaos SECONDS SEED [GUARD]`, the guard being one to do without."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from tests.chaos.servers import private_servers
from tests.chaos.storm import Storm


def main(seconds: float, seed: int, without: str = "") -> int:
    print(f"chaos for {seconds:g} s with seed {seed}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="azfdb-chaos-"))
    with ExitStack() as ending:
        storm = Storm(folder, ending.enter_context(private_servers()), seed, without)
        ending.callback(storm.weather.close)
        ending.callback(storm.fleet.abandon)
        storm.rage(seconds)
        storm.settle()
        complaints = storm.complaints()
        print("\n".join([storm.report(), *complaints[:50], *storm.traces()[:10]]), flush=True)
    if complaints:
        print(f"{len(complaints)} complaints; the journals are in {folder}", flush=True)
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGHUP):  # servers and pollers are stopped on the way out
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    sys.exit(main(float(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]))
