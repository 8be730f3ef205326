"""Random schemas, DDL and connector settings against a real database, connector, broker and sidecar.

Everything that is strange ends in one of two ways: the views equal PostgreSQL, or something is refused by
name.
"""

from slackwater_lab.strange.run import StrangeRun, Verdict

__all__ = ["StrangeRun", "Verdict"]
