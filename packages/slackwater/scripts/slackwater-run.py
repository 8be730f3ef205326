#!python
"""``slackwater run`` for spark-submit, which takes only files that end in ``.py``."""

import sys

from slackwater.cli.main import main

if __name__ == "__main__":
    main(["run", *sys.argv[1:]])
