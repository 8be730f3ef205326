"""Mutation testing: faults are planted one at a time, and the tests have to notice (`make mutants`)."""
