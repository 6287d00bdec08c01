"""The private server's parent: it starts the server, and takes it away when nobody needs it.

`private_server` runs this file as a process of its own, with a folder and a server's command line.
Each line on standard input (re)starts the server and is answered with its process id. The end of
standard input ends everything and removes the folder: that end also comes when the starter dies,
by whatever signal, which no clean-up in the starter itself could promise.
"""

import ctypes
import shutil
import signal
import subprocess
import sys
from pathlib import Path

PR_SET_PDEATHSIG = 1


def die_with_the_guard() -> None:
    """In the server, before it becomes one: be killed when the guard dies (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main(folder: str, *command: str) -> None:
    server: subprocess.Popen[bytes] | None = None

    def end() -> None:
        if server is not None:
            server.kill()
            server.wait()

    # A server that was killed from outside leaves the process table at once.
    signal.signal(signal.SIGCHLD, lambda *_: server and server.poll())
    try:
        with Path(folder, "log").open("ab") as log:
            for _ in sys.stdin:
                end()
                server = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    preexec_fn=die_with_the_guard,
                )
                print(server.pid, flush=True)
    finally:
        end()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
