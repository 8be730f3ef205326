"""Slackwater makes change data capture transactional again. What there is, is in its subpackages.

Spark's workers, sidecars and clients import this package: it imports nothing.
"""

__version__ = "0.1.0"
