"""Errors of the schema registry's client.

::

    RegistryError
    ├── RegistrySettingsError      an address that cannot be one
    ├── RegistryUnavailableError   no answer, or none that helps; trying again later is right
    ├── RegistryRefusedError       it does not let us in
    ├── UnknownSchemaError         it has no schema with this id
    └── UnsupportedSchemaError     the schema is no self-contained Avro
"""


class RegistryError(Exception):
    """Root of everything this package raises."""


class RegistrySettingsError(RegistryError):
    """The address of the registry cannot be used."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem
        """Without the address, which may hold a password."""

    def __str__(self) -> str:
        return f"schema registry: its address {self.problem}; expected e.g. http://registry:8081"


class RegistryUnavailableError(RegistryError):
    """The registry does not answer. What is read already is not lost: ask again."""

    def __init__(self, address: str, schema_id: int, reason: str) -> None:
        super().__init__(address, schema_id, reason)
        self.address = address
        self.schema_id = schema_id
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"schema registry {self.address}: schema {self.schema_id} cannot be asked for: {self.reason}; "
            "check that the registry runs and that the address is right"
        )


class RegistryRefusedError(RegistryError):
    """The registry wants other credentials."""

    def __init__(self, address: str, schema_id: int, status: int) -> None:
        super().__init__(address, schema_id, status)
        self.address = address
        self.schema_id = schema_id
        self.status = status

    def __str__(self) -> str:
        return (
            f"schema registry {self.address}: reading schema {self.schema_id} was refused "
            f"(HTTP {self.status}); check user and password, and that the user may read schemas"
        )


class UnknownSchemaError(RegistryError):
    """The registry does not have the schema that a record names."""

    def __init__(self, address: str, schema_id: int) -> None:
        super().__init__(address, schema_id)
        self.address = address
        self.schema_id = schema_id

    def __str__(self) -> str:
        return (
            f"schema registry {self.address}: there is no schema {self.schema_id}; is this the registry that "
            "the connector's converter writes to, and was the schema deleted?"
        )


class UnsupportedSchemaError(RegistryError):
    """A schema that is not self-contained Avro."""

    def __init__(self, address: str, schema_id: int, problem: str) -> None:
        super().__init__(address, schema_id, problem)
        self.address = address
        self.schema_id = schema_id
        self.problem = problem

    def __str__(self) -> str:
        return (
            f"schema registry {self.address}: schema {self.schema_id} {self.problem}; expected Avro without "
            "references, as Connect's AvroConverter registers it"
        )
