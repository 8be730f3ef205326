"""What a pipeline is computed by, for people and for tools."""

from slackwater_spark.explain.explanation import Explanation, explain, without_sql
from slackwater_spark.explain.text import explain_pipeline, explanation_lines

__all__ = ["Explanation", "explain", "explain_pipeline", "explanation_lines", "without_sql"]
