"""The outputs of pipelines: a package for each kind, and ``function`` for the Python API."""
