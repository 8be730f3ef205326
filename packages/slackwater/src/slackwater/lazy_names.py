"""Names of a package that are imported when they are first used."""

from collections.abc import Callable, Mapping
from importlib import import_module


def lazy_names(package: str, names: Mapping[str, tuple[str, ...]]) -> Callable[[str], object]:
    """Returns the ``__getattr__`` of a package that imports a name's module when the name is first used.

    Args:
        package: The name of the package.
        names: The names by the module that contains them.
    """
    module_of = {name: module for module, defined in names.items() for name in defined}

    def get(name: str) -> object:
        module = module_of.get(name)
        if module is None:
            msg = f"module {package!r} has no attribute {name!r}"
            raise AttributeError(msg)
        return getattr(import_module(module), name)

    return get
