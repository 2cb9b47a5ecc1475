"""Starts the Space on this machine and asks it three questions, as a program that uses a Space would.

`make space` runs it where Gradio is installed; the tests ask the same functions without Gradio.
"""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError

APP = Path(__file__).with_name("app.py")
PATIENCE_S = 60.0
RUN = "model: llama-3.1-8b\nmethod: lora\n"


@contextmanager
def started() -> Iterator[str]:
    """Yield the address of a Space that answers; it ends with the block."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "GRADIO_SERVER_PORT": str(port), "GRADIO_ANALYTICS_ENABLED": "False"}
    process = subprocess.Popen([sys.executable, str(APP)], env=environment)
    address, until = f"http://127.0.0.1:{port}", time.monotonic() + PATIENCE_S
    try:
        while True:
            try:
                urllib.request.urlopen(address, timeout=5).close()
                break
            except URLError:
                if process.poll() is not None or time.monotonic() > until:
                    raise
                time.sleep(0.2)
        yield address
    finally:
        process.terminate()
        process.wait(timeout=10)


def main() -> int:
    """Ask for an estimate, for a plan, and for a file that is none of the Space's business."""
    from gradio_client import Client

    with started() as address:
        client = Client(address, verbose=False)
        verdict, figures, *_ = client.predict(RUN, "A40", "num_samples=1000", api_name="/estimate")
        planned, front = client.predict(RUN, "A40", "num_samples=1000", None, None, "time", api_name="/plan")
        refused, *_ = client.predict(RUN, "A40", "model=/etc/passwd", api_name="/estimate")
    sys.stdout.write(f"{verdict}\n\n{planned}\n\n{refused}\n")
    answered = "GiB" in verdict and figures["data"] and "Fastest" in planned and front["data"]
    return 0 if answered and "Error" in refused else 1


if __name__ == "__main__":
    sys.exit(main())
