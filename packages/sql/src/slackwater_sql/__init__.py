"""SELECT TRANSACTIONALLY: declared tables, view plans, evaluation lifted by LSN."""
