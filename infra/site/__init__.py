"""The documentation as a site: reference pages and pictures made from code (`make docs`)."""
