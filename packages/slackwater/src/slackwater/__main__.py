"""``python -m slackwater``."""

from slackwater.main import main

main()
