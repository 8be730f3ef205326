"""SELECT TRANSACTIONALLY: declared tables, views cut into stages, evaluation at LSNs.

Names are imported from the modules, so that a task that only packs rows does not load the SQL engine:
``postgres`` (declared tables, from DDL or a database), ``compiler`` (``compile_pipeline``), ``plan`` (its
result), ``row_codec``, ``stage_evaluation``, ``errors``.
"""
