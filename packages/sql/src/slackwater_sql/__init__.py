"""SELECT TRANSACTIONALLY: declared tables, views cut into stages, evaluation at LSNs.

Names are imported from the modules, so that a task that only packs rows does not load the SQL engine:
``catalog`` and ``ddl`` (declared tables), ``pull`` (from a database), ``engine`` (``compile_pipeline``),
``stages`` and ``plan`` (what it gives), ``row_codec``, ``stage_evaluation``, ``errors``.
"""
