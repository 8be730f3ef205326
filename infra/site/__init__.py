"""The documentation as a site: reference pages made from code (`make docs`)."""
