"""Views: their tables, their division into stages, and the evaluation of stages at commits.

Import names from the modules, so that a task that only packs rows does not load DuckDB: ``postgres``
(declared tables), ``planner.cutting`` (``compile_pipeline``), ``plan`` (its result), ``row_codec``,
``stage_evaluation``, ``errors``.
"""
