"""Tests of views without servers: plain rows as input, documents as output, transaction by transaction."""
