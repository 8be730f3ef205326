"""A small schema registry for tests."""

from slackwater_registry.testing.server import RegistryServer

__all__ = ["RegistryServer"]
