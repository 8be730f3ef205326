"""The demo: the whole product on one machine, judged by checkers that know nothing of it."""
