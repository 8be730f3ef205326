"""The ``slackwater`` command: settings, commands, demo. Nothing imports it."""

__version__ = "0.1.0"
