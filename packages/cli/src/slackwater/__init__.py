"""The slackwater command."""
