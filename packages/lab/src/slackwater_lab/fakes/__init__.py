"""Stand-ins for tests of every member: sources, outputs and a registry, none of which needs a database."""
