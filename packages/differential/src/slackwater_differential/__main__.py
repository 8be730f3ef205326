"""``python -m slackwater_differential``."""

import sys

from slackwater_differential.command import main

if __name__ == "__main__":
    sys.exit(main())
