"""The examples of docs/python.md; packages/spark/tests/api runs them."""
