"""SELECT TRANSACTIONALLY: declared tables, view plans, evaluation lifted by LSN.

Names are imported from the modules, so that a task that only packs rows does not load the SQL engine:
``catalog`` and ``ddl`` (declared tables), ``pull`` (from a database), ``view`` (``compile_view``), ``plan``,
``row_codec``, ``evaluation``, ``errors``.
"""
