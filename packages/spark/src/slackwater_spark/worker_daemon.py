"""The process that Spark forks its Python workers from; they import PySpark as it is installed.

Spark puts ``pyspark.zip`` before the installed packages. What is imported from there is compiled again in
every worker, because an archive keeps no byte code.
"""

import os
import sys


def without_archives(path: list[str]) -> list[str]:
    """Returns a search path without the archives inside of a PySpark that can be imported from the same path.

    Archives of another Spark stay: its workers must be of its version.
    """
    installed = [os.path.join(os.path.realpath(entry), "pyspark", "") for entry in path]
    return [entry for entry in path if not os.path.realpath(entry).startswith(tuple(installed))]


def main() -> None:
    """Serves until Spark closes the standard input."""
    sys.path[:] = without_archives(sys.path)
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()
