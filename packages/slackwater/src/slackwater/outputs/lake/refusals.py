"""A lake's answers: which errors are transient, and which are not."""

import re
from typing import Final

from slackwater.outputs.lake.table import LakeError, LakeRefusedError, LakeUnavailableError

_NO_RIGHT: Final = re.compile(
    r"permission ?denied|operation not permitted|read-only file system|access[ _]?denied|forbidden|"
    r"unauthorized|not authorized|invalid ?access ?key|signature ?does ?not ?match|\b40[13]\b",
    re.IGNORECASE,
)
_PLACE: Final = re.compile(r"""(["'])(?:/|\w+://)[^"']*\1|(?<![\w<])(?:/|\w+://)\S*""")
"""A path or a URL: its words and numbers are names, and say nothing about rights."""
RIGHTS_HINT: Final = (
    "give the pipeline's user the right to read, write, list and delete there, then start the pipeline "
    "again; it continues where the ledger ends"
)
_SECRET: Final = re.compile(r"((?:secret|password|token|key)[^=:\s]*\s*[=:]\s*)\S+", re.IGNORECASE)


def refused_or_unavailable(error: Exception) -> LakeError:
    """Returns the error to raise for an error of a library or of the storage."""
    reason = _SECRET.sub(r"\1…", " ".join(str(error).split())) or type(error).__name__
    if _NO_RIGHT.search(_PLACE.sub("", reason)):
        return LakeRefusedError(reason, RIGHTS_HINT)
    return LakeUnavailableError(reason)
