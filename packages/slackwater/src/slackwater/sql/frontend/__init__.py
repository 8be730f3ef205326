"""The text of a view as a tree of relations."""

from slackwater.sql.frontend.text import ViewText
from slackwater.sql.frontend.view import planning, read_view

__all__ = ["ViewText", "planning", "read_view"]
