"""Slackwater and other stream processors over the same topics, judged by the same checker."""
