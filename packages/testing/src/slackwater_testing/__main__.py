"""``python -m slackwater_testing``."""

import sys

from slackwater_testing.command import main

if __name__ == "__main__":
    sys.exit(main())
