"""Merges flags, environment and file into the settings, and remembers where each value came from.

Precedence: flag, environment, file, default. Environment names of a setting ``section.key``:
``SLACKWATER_SECTION__KEY``, ``SLACKWATER_SECTION_KEY`` and, for some, ``SLACKWATER_KEY``.
"""

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, SecretStr, ValidationError
from pydantic.fields import FieldInfo

from slackwater_command.errors import CommandConfigError
from slackwater_command.settings import Settings

PREFIX = "SLACKWATER_"
DEFAULT_FILE = "slackwater.toml"
WITHOUT_SECTION = ("kafka.bootstrap", "run.checkpoint", "run.master", "run.available_now")
"""Settings whose section may be left out in the environment, as in the flags."""
TABLES = frozenset({"delta.options", "iceberg.options", "kafka.options", "run.spark_conf", "sidecar.of"})
"""Settings that hold keys of the user's choice; these can only stand in the file."""
PLACES = frozenset(
    {
        "delta.location",
        "kafka.ssl_ca",
        "run.checkpoint",
        "run.index_root",
        "run.spark_log",
        "dev.folder",
        "log.file",
    }
)
"""Settings that name a file or folder."""
MAY_BE_SECRET = frozenset({"delta.options", "iceberg.options", "kafka.options", "run.spark_conf"})
"""Tables whose values are never shown."""
_CREDENTIALS = re.compile(r"(?<=://)\S*@")
"""In any address: s3a://key:secret@bucket, http://token@host; a secret may hold a slash or an @ itself."""
NOT_SETTINGS = frozenset({"SLACKWATER_CONFIG", "SLACKWATER_DEBUG", "SLACKWATER_CACHE"})
"""Variables with the prefix that are read elsewhere."""


@dataclass(frozen=True, slots=True)
class SettingField:
    """Names one setting of the model."""

    path: str
    info: FieldInfo

    @property
    def variables(self) -> tuple[str, ...]:
        """Environment variables that set it, the strongest first."""
        upper = self.path.upper()
        names = [upper.replace(".", "__"), upper.replace(".", "_")]
        if self.path in WITHOUT_SECTION:
            names.append(upper.partition(".")[2])
        return tuple(dict.fromkeys(PREFIX + name for name in names))

    @property
    def is_table(self) -> bool:
        """See :data:`TABLES`."""
        return self.path in TABLES


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """Settings together with the origin of each value."""

    settings: Settings
    origins: Mapping[str, str]
    """By path: ``flag``, ``environment NAME``, the file's path, or ``default``."""

    def shown(self) -> Iterator[tuple[str, str, str]]:
        """``(path, value, origin)`` of every setting, secrets masked."""
        for field in setting_fields():
            value = _get(self.settings, field.path)
            shown = _masked(value) if field.path in MAY_BE_SECRET else _shown(value)
            yield field.path, shown, self.origins[field.path]


def setting_fields() -> list[SettingField]:
    """Returns every setting, in the order of the model."""
    return list(_walk(Settings, ""))


def load_settings(
    flags: Mapping[str, object], environment: Mapping[str, str], config: Path | None = None
) -> LoadedSettings:
    """Builds the settings of one invocation.

    Args:
        flags: given on the command line, by path; None values count as not given.
        environment: usually ``os.environ``.
        config: the settings file; None means ``slackwater.toml`` in the current folder, if it is there.

    Raises:
        CommandConfigError: unknown, unreadable or invalid settings; values are not repeated in the message.
    """
    fields = {field.path: field for field in setting_fields()}
    layers = [_from_file(config, environment, fields), _from_environment(environment, fields)]
    layers.append({path: (value, "flag") for path, value in flags.items() if value is not None})
    values: dict[str, tuple[object, str]] = {}
    for layer in layers:
        values.update(layer)
    origins = {path: values[path][1] if path in values else "default" for path in fields}
    try:
        settings = Settings.model_validate(_nested({path: value for path, (value, _) in values.items()}))
    except ValidationError as error:
        raise CommandConfigError("\n".join(_problems(error, origins))) from None
    return LoadedSettings(settings, origins)


def _walk(model: type[BaseModel], prefix: str) -> Iterator[SettingField]:
    for name, info in model.model_fields.items():
        annotation = info.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from _walk(annotation, f"{prefix}{name}.")
        else:
            yield SettingField(prefix + name, info)


def _from_file(
    config: Path | None, environment: Mapping[str, str], fields: Mapping[str, SettingField]
) -> dict[str, tuple[object, str]]:
    given = config or (
        Path(environment["SLACKWATER_CONFIG"]) if environment.get("SLACKWATER_CONFIG") else None
    )
    path = given or Path(DEFAULT_FILE)
    if given is None and not path.is_file():
        return {}
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise CommandConfigError(f"settings file {path}: cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise CommandConfigError(f"settings file {path}: is not valid TOML: {error}") from None
    flat = dict(_flatten(tree, "", fields))
    for key in flat:
        if key not in fields:
            raise _unknown(key, str(path), _similar(key, fields))
    return {key: (_anchored(key, value, path), str(path)) for key, value in flat.items()}


def _flatten(
    tree: Mapping[str, Any], prefix: str, fields: Mapping[str, SettingField]
) -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        path = prefix + key
        if isinstance(value, dict) and path not in fields:
            yield from _flatten(value, f"{path}.", fields)
        else:
            yield path, value


def _anchored(key: str, value: object, file: Path) -> object:
    """Makes a relative path of the file relative to the file."""
    if key in PLACES and isinstance(value, str) and "://" not in value:
        return str(file.parent / Path(value).expanduser())
    return value


def _from_environment(
    environment: Mapping[str, str], fields: Mapping[str, SettingField]
) -> dict[str, tuple[object, str]]:
    found: dict[str, tuple[object, str]] = {}
    known = set(NOT_SETTINGS)
    for field in fields.values():
        if field.is_table:
            continue
        known.update(field.variables)
        given = [name for name in field.variables if environment.get(name)]
        if given:
            found[field.path] = (environment[given[0]], f"environment {given[0]}")
    for name in environment:
        if name.startswith(PREFIX) and name not in known:
            raise _unknown(name, "environment", difflib.get_close_matches(name, sorted(known), 2))
    return found


def _unknown(key: str, origin: str, suggestions: Sequence[str]) -> CommandConfigError:
    """Refuses a key that no setting has: a typing error would otherwise be ignored silently."""
    hint = f"did you mean {' or '.join(suggestions)}?" if suggestions else "remove it."
    return CommandConfigError(
        f"{origin}: unknown setting {key}", f"{hint} `slackwater config` lists all settings"
    )


def _similar(key: str, fields: Mapping[str, SettingField]) -> list[str]:
    last = {path.rpartition(".")[2]: path for path in fields}
    by_name = difflib.get_close_matches(key.rpartition(".")[2], last, 1, 0.8)
    by_path = difflib.get_close_matches(key, fields, 2)
    return list(dict.fromkeys([*(last[name] for name in by_name), *by_path]))[:2]


def _nested(values: Mapping[str, object]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, value in values.items():
        section, _, key = path.rpartition(".")
        (tree.setdefault(section, {}) if section else tree)[key] = value
    return tree


def _problems(error: ValidationError, origins: Mapping[str, str]) -> Iterator[str]:
    """Yields what is wrong with each value, without the value: it may be a secret."""
    for problem in error.errors(include_input=False, include_context=False, include_url=False):
        path = ".".join(str(part) for part in problem["loc"])
        setting = next((known for known in origins if path == known or path.startswith(f"{known}.")), path)
        text = problem["msg"].removeprefix("Value error, ")
        yield f"setting {path} (from {origins.get(setting, 'settings')}): {text}"


def _get(settings: Settings, path: str) -> object:
    value: object = settings
    for name in path.split("."):
        value = getattr(value, name)
    return value


def _masked(value: object) -> str:
    return "********" if value else "-"


def _shown(value: object) -> str:
    match value:
        case None:
            return "-"
        case SecretStr():
            return _masked(value)
        case BaseModel():
            return _shown(value.model_dump(exclude_none=True))
        case dict():
            return ", ".join(f"{key}={_shown(each)}" for key, each in value.items()) or "-"
        case frozenset() | tuple():
            return ", ".join(map(_shown, sorted(value) if isinstance(value, frozenset) else value))
        case _:
            return _CREDENTIALS.sub("********@", str(value))
