"""Compiles the views of a pipeline: cuts trees of relations into stages."""
