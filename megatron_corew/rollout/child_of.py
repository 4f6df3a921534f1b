"""Run a command that ends when its parent ends: ``python child_of.py PARENT_PID COMMAND...``.

Linux only. A small program of its own, because code between fork and exec in a process with
threads, such as a trainer, can hang.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ask the kernel for SIGTERM at the parent's death, then become the command."""
    parent = int(sys.argv[1])
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        sys.exit("the parent ended before the command could start")
    os.execvp(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
