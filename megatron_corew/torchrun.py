"""torchrun that ends after a signal with the shell's exit code; torch's own shows a traceback.

``python -m megatron_corew.torchrun`` takes torchrun's arguments.
"""

import logging
import signal
import sys

from torch.distributed import run
from torch.distributed.elastic.multiprocessing.api import SignalException


def main() -> None:
    """Be torchrun; 130 after an interrupt, 143 after SIGTERM."""
    # torchrun warns of every signal that it passes on.
    logging.disable(logging.WARNING)
    try:
        # Who starts this may have held an interrupt back until all was imported.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        run.main()
    except SignalException as error:
        # torchrun has ended its processes by now.
        sys.exit(128 + error.sigval)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


if __name__ == "__main__":
    main()
