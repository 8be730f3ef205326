"""Runs the whole product on one machine and has it judged by checkers that know nothing of it."""
