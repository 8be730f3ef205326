"""Tests of views without servers: plain rows in, documents out, transaction by transaction."""
