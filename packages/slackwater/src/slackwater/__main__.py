"""``python -m slackwater``."""

from slackwater.cli.main import main

main()
