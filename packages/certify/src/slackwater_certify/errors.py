"""Errors of the certifier.

::

    CertifyError
    ├── SpecificationError      certify.toml cannot be used            exit code 2
    ├── SchemaError             the declared tables cannot be used     exit code 2
    ├── ViewError               DuckDB refuses the view                exit code 2
    ├── MissingConnectionError  an address nobody gave                 exit code 2
    ├── MalformedRecordError    a record of the source's topics is no Debezium record
    └── UnreadableError         a topic, table or folder cannot be read
"""


class CertifyError(Exception):
    """Root of everything this package raises."""

    exit_code = 1


class SpecificationError(CertifyError):
    """A key of certify.toml is missing, unknown or has a value that cannot be used."""

    exit_code = 2

    def __init__(self, file: str, key: str, problem: str) -> None:
        super().__init__(file, key, problem)
        self.file = file
        self.key = key
        """Dotted path of the key; empty when it is the file as a whole."""
        self.problem = problem

    def __str__(self) -> str:
        where = f"{self.file}: {self.key}" if self.key else self.file
        return f"{where}: {self.problem}; `slackwater certify --help` shows the format"


class SchemaError(CertifyError):
    """The CREATE TABLE statements cannot be used."""

    exit_code = 2

    def __init__(self, file: str, problem: str) -> None:
        super().__init__(file, problem)
        self.file = file
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.file}: {self.problem}"


class ViewError(CertifyError):
    """The view cannot be evaluated."""

    exit_code = 2

    def __init__(self, file: str, problem: str) -> None:
        super().__init__(file, problem)
        self.file = file
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.file}: {self.problem}"


class MissingConnectionError(CertifyError):
    """The certificate needs a server whose address nobody gave."""

    exit_code = 2

    def __init__(self, name: str, purpose: str) -> None:
        super().__init__(name, purpose)
        self.name = name
        """``bootstrap`` or ``dsn``."""
        self.purpose = purpose

    def __str__(self) -> str:
        return f"the certifier needs {self.name} {self.purpose}; give --{self.name}"


class MalformedRecordError(CertifyError):
    """A record of a data topic or of the transaction topic."""

    def __init__(self, place: str, problem: str, value: str) -> None:
        super().__init__(place, problem, value)
        self.place = place
        """``topic/partition/offset``."""
        self.problem = problem
        self.value = value
        """Its beginning."""

    def __str__(self) -> str:
        return (
            f"record {self.place} is no Debezium record in JSON ({self.problem}): {self.value}; "
            "the connector needs the JSON converter and provide.transaction.metadata=true"
        )


class UnreadableError(CertifyError):
    """Something that holds an output or a history does not answer or does not exist."""

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(what, reason)
        self.what = what
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.what} cannot be read: {self.reason}; check the address and the name"
