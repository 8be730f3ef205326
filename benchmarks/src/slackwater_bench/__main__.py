"""``python -m slackwater_bench``."""

import sys

from slackwater_bench.command import main

if __name__ == "__main__":
    sys.exit(main())
