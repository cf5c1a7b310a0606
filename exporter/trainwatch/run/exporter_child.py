"""`python -m trainwatch.run.exporter_child FLAGS...`: the exporter, as a child of `trainwatch run`.

The parent blocks the signals that it passes on to the command, and a blocked mask is inherited: an
exporter that kept it could not be stopped.
"""

import signal
import sys

from trainwatch.cli import main

if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    sys.exit(main(["exporter", *sys.argv[1:]]))
