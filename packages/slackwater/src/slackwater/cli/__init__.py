"""The ``slackwater`` command: settings, commands, demo. Nothing imports it."""
