"""The examples of docs/python.md; packages/slackwater/tests/api runs them."""
