"""Says by which stages a pipeline is computed, for people and for tools."""

from slackwater_spark.explain.explanation import Explanation, explain
from slackwater_spark.explain.text import explain_pipeline, explanation_lines

__all__ = ["Explanation", "explain", "explain_pipeline", "explanation_lines"]
