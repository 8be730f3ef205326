"""Runs the whole product on one machine and has it judged by checkers that know nothing of it."""

import slackwater_lab  # noqa: F401 - first, since only the extra of the demo brings it
