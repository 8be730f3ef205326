"""The text of a view as a tree of relations."""

from slackwater_sql.frontend.plain import plain_view
from slackwater_sql.frontend.text import ViewText
from slackwater_sql.frontend.view import read_view

__all__ = ["ViewText", "plain_view", "read_view"]
