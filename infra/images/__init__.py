"""Images of the product, and local ones of the servers that it works with (docs/deploying.md)."""
