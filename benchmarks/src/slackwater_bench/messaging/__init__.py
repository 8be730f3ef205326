"""The ways to make messages and a database one transaction, compared."""
