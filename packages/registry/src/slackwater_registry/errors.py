"""Errors of the schema registry's client, by what can be done about them.

::

    RegistryError
    ├── RegistryConfigError        it refuses our credentials
    ├── RegistryInputError         it does not have the schema that a record names, or one that cannot be used
    └── RegistryUnavailableError   it does not answer; asking again later is right
"""

from typing import ClassVar

from slackwater_protocol import SlackwaterError


class RegistryError(SlackwaterError):
    """Root of the errors that the client raises."""

    hint: ClassVar[str]
    """The advice what to do about it."""

    def __init__(self, address: str, schema_id: int, problem: str) -> None:
        super().__init__(address, schema_id, problem)
        self.address = address
        self.schema_id = schema_id
        self.problem = problem

    def __str__(self) -> str:
        return f"schema registry {self.address}: {self.problem}; {self.hint}"


class RegistryConfigError(RegistryError):
    """The registry wants other credentials."""

    hint = "check user and password, and that the user may read schemas"


class RegistryInputError(RegistryError):
    """The registry has no schema with this id, or one that is no self-contained Avro."""

    hint = (
        "is this the registry that the connector's converter writes to, was the schema deleted, and is it "
        "Avro without references, as Connect's AvroConverter registers it?"
    )


class RegistryUnavailableError(RegistryError):
    """The registry does not answer. What is read already is not lost: ask again."""

    hint = "check that the registry runs and that the address is right"
