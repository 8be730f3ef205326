"""What a SparkApplication starts: ``slackwater run`` with the arguments of the application."""

import sys

from slackwater.main import main

main(["run", *sys.argv[1:]])
