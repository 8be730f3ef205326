"""The process from which Spark forks its Python workers; they import the installed PySpark.

Spark puts ``pyspark.zip`` before the installed packages. Modules that are imported from it are compiled again
in every worker, because an archive contains no byte code.
"""

import gc
import os
import sys
from importlib import import_module

from slackwater.protocol.log_fields import configure_worker_logging


def without_archives(path: list[str]) -> list[str]:
    """Returns a search path without the archives of a PySpark that can be imported from the same path.

    Archives of another Spark stay, because its workers must have its version.
    """
    installed = [os.path.join(os.path.realpath(entry), "pyspark", "") for entry in path]
    return [entry for entry in path if not os.path.realpath(entry).startswith(tuple(installed))]


def import_what_tasks_need() -> None:
    """Imports modules once for all workers, which are forked from this process and share its memory.

    The objects that exist then are frozen, because Spark triggers a garbage collection after every task.
    """
    # Arrow looks for pandas' objects in every list that it is given, so it imports pandas.
    for module in ("pandas", "pyarrow.fs", "slackwater.pipeline.batch_job"):
        import_module(module)

    gc.collect()
    gc.freeze()


def main() -> None:
    """Serves until Spark closes the standard input."""
    sys.path[:] = without_archives(sys.path)
    # Threads do not outlive a fork, so the allocator of Arrow must not start any here.
    os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
    import_what_tasks_need()
    configure_worker_logging()
    from pyspark.daemon import manager

    try:
        manager()
    except SystemExit as end:
        # The frozen objects would outlive the interpreter, and DuckDB's binding report each of its own.
        os._exit(end.code if isinstance(end.code, int) else 1)


if __name__ == "__main__":
    main()
