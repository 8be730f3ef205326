"""``python -m slackwater_simulator``."""

import sys

from slackwater_simulator.command import main

if __name__ == "__main__":
    sys.exit(main())
