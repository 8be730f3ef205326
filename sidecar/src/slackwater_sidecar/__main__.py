"""``python -m slackwater_sidecar``."""

from slackwater_sidecar.main import main

if __name__ == "__main__":  # worker processes import this module
    main()
