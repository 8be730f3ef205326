"""Merges flags, environment and file into the settings, and remembers where each value came from.

Precedence: flag, environment, file, default. Environment names of a setting ``section.key``:
``SLACKWATER_SECTION__KEY``, ``SLACKWATER_SECTION_KEY`` and, for some, ``SLACKWATER_KEY``.
"""

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, get_origin

from slackwater.protocol import HIDDEN, address_secrets, secret_options
from slackwater.settings.declared import DeclaredField, Problem, Reader, Reads, declared_fields
from slackwater.settings.errors import CommandConfigError, did_you_mean
from slackwater.settings.model import PLACE, Settings

PREFIX = "SLACKWATER_"
DEFAULT_FILE = "slackwater.toml"
WITHOUT_SECTION = ("kafka.bootstrap", "run.checkpoint", "run.master", "run.available_now")
"""Settings whose section may be left out in the environment, as in the flags."""
_CREDENTIALS = re.compile(r"(?<=://)\S*@")
"""In any address: s3a://key:secret@bucket, http://token@host; a secret may hold a slash or an @ itself."""
_FILE = "_file"
"""At the end of a secret setting's name: what is given is the name of a file with the secret."""
NOT_SETTINGS = frozenset({"SLACKWATER_CONFIG", "SLACKWATER_DEBUG", "SLACKWATER_CACHE"})
"""Variables with the prefix that are read elsewhere."""


@dataclass(frozen=True, slots=True)
class SettingField:
    """Names one setting of the model."""

    path: str
    declared: DeclaredField

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
        """Whether it has keys of the user's choice, which can only be set in the file."""
        is_read = any(isinstance(note, Reads) for note in self.declared.notes)
        return (get_origin(self.declared.type) in (dict, Mapping)) and not is_read

    @property
    def is_secret(self) -> bool:
        """Whether it is or may hold a secret. It may then be given as the name of a file, too."""
        return self.declared.is_hidden and not self.is_table

    @property
    def is_place(self) -> bool:
        """Whether it names a file or folder."""
        return self.declared.type is Path or PLACE in self.declared.notes

    def of(self, settings: Settings) -> Any:
        """Returns the value in settings."""
        section, _, _ = self.path.rpartition(".")
        return getattr(getattr(settings, section) if section else settings, self.declared.attribute)


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """Settings together with the origin of each value."""

    settings: Settings
    origins: Mapping[str, str]
    """By path: ``flag``, ``environment NAME``, the file's path, or ``default``."""

    def shown(self) -> Iterator[tuple[str, str, str]]:
        """``(path, value, origin)`` of every setting, secrets masked."""
        for field in setting_fields():
            value = field.of(self.settings)
            shown = _masked(value) if field.declared.is_hidden else _shown(value)
            yield field.path, shown, self.origins[field.path]


def secrets_of(settings: Settings) -> frozenset[str]:
    """Returns all secrets of the settings: what has to be kept out of texts."""
    found: set[str] = set()
    for field in setting_fields():
        value = field.of(settings)
        if field.is_secret and value is not None:
            found.update(address_secrets(value) if "://" in value else [value])
        elif field.declared.is_hidden and field.is_table:
            found.update(secret_options(value))
    return frozenset(filter(None, found))


def setting_fields() -> list[SettingField]:
    """Returns every setting, in the order of the model."""
    return list(_walk(Settings, ""))


def load_settings(
    flags: Mapping[str, object], environment: Mapping[str, str], config: Path | None = None
) -> LoadedSettings:
    """Builds the settings of one invocation.

    Flags are by path; None values count as not given. Without a settings file, ``slackwater.toml`` in the
    current folder is read, if it is there.

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
    reader = Reader(takes_texts=True, shows_values=False)
    settings = reader.read(Settings, _nested({path: value for path, (value, _) in values.items()}))
    if settings is None:
        raise CommandConfigError("\n".join(_described(each, values) for each in reader.problems))
    _refuse_secrets(layers[-1], fields)
    return LoadedSettings(settings, origins)


def take_secrets(environment: MutableMapping[str, str]) -> dict[str, str]:
    """Takes the variables of secret settings out of an environment, which programs inherit that are started.

    Returns:
        The environment as it was.
    """
    before = dict(environment)
    for field in setting_fields():
        if field.is_secret:
            for name in field.variables:
                environment.pop(name, None)
    return before


def _refuse_secrets(flags: Mapping[str, tuple[object, str]], fields: Mapping[str, SettingField]) -> None:
    """Refuses secrets on the command line, which every account of the machine can read.

    Raises:
        CommandConfigError: an address holds a password.
    """
    for path, (value, _) in flags.items():
        text = str(value)
        # Of what is no address at all the model says so.
        if fields[path].is_secret and address_secrets(text):
            variable = fields[path].variables[0]
            raise CommandConfigError(
                f"setting {path} (from flag): it holds a password, and everybody on this machine can read "
                "command lines",
                f"give it as {variable}, as {variable}_FILE, or in {DEFAULT_FILE}",
            )


def _walk(kind: type, prefix: str) -> Iterator[SettingField]:
    for each in declared_fields(kind):
        if isinstance(each.type, type) and is_dataclass(each.type):
            yield from _walk(each.type, f"{prefix}{each.name}.")
        else:
            yield SettingField(prefix + each.name, each)


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
        raise CommandConfigError(f"settings file {path} cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise CommandConfigError(f"settings file {path} is not valid TOML: {error}") from None
    flat = dict(_flatten(tree, "", fields))
    found: dict[str, tuple[object, str]] = {}
    for key, value in flat.items():
        if key in fields:
            found[key] = _anchored(fields[key], value, path), str(path)
        elif (field := _given_by_file(key, fields)) is not None:
            found[field.path] = _read_secret(key, path.parent / Path(str(value)).expanduser())
            if field.path in flat:
                raise _given_twice(str(path), field.path, key)
        else:
            raise _unknown(key, str(path), fields)
    return found


def _given_by_file(key: str, fields: Mapping[str, SettingField]) -> SettingField | None:
    """Returns the secret setting that a key with ``_file`` at its end is about."""
    field = fields.get(key.removesuffix(_FILE)) if key.endswith(_FILE) else None
    return field if field is not None and field.is_secret else None


def _read_secret(key: str, path: Path) -> tuple[str, str]:
    """Returns the secret in a file, without the line break at its end, and its origin.

    Raises:
        CommandConfigError: it cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8").rstrip("\r\n"), f"file {path}"
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise CommandConfigError(f"setting {key}: file {path} cannot be read: {reason}") from None


def _given_twice(origin: str, one: str, other: str) -> CommandConfigError:
    return CommandConfigError(f"{origin}: {one} and {other} say the same", "give one of them")


def _flatten(
    tree: Mapping[str, Any], prefix: str, fields: Mapping[str, SettingField]
) -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        path = prefix + key
        if isinstance(value, dict) and path not in fields:
            yield from _flatten(value, f"{path}.", fields)
        else:
            yield path, value


def _anchored(field: SettingField, value: object, file: Path) -> object:
    """Makes a relative path of the file relative to the file."""
    if field.is_place and isinstance(value, str) and "://" not in value:
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
        if not field.is_secret:
            continue
        files = [name + _FILE.upper() for name in field.variables]
        known.update(files)
        for name in files:
            if environment.get(name):
                if given:
                    raise _given_twice("environment", given[0], name)
                found[field.path] = _read_secret(name, Path(environment[name]))
    for name in environment:
        if name.startswith(PREFIX) and name not in known:
            raise _unknown(name, "environment", known)
    return found


def _unknown(key: str, origin: str, known: Iterable[str]) -> CommandConfigError:
    """Refuses a key that no setting has: a typing error would otherwise be ignored silently."""
    hint = did_you_mean(key, sorted(known)) or "remove it."
    return CommandConfigError(
        f"{origin}: unknown setting {key}", f"{hint} `slackwater config` lists all settings"
    )


def _nested(values: Mapping[str, object]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, value in values.items():
        section, _, key = path.rpartition(".")
        (tree.setdefault(section, {}) if section else tree)[key] = value
    return tree


def _described(problem: Problem, values: Mapping[str, tuple[object, str]]) -> str:
    """Says what is wrong with a value or a section, without the values: they may be secrets."""
    path = problem.path
    origins = [
        origin
        for known, (_, origin) in values.items()
        if path == known or path.startswith((f"{known}.", f"{known}[")) or known.startswith(f"{path}.")
    ]
    described = replace(problem, path=f"{path} (from {', '.join(dict.fromkeys(origins)) or 'settings'})")
    return f"setting {described}"


def _masked(value: object) -> str:
    return HIDDEN if value else "-"


def _shown(value: object) -> str:
    if is_dataclass(value):
        named = ((each.name, getattr(value, each.name)) for each in fields(value))
        value = {name: each for name, each in named if each is not None}
    match value:
        case None | "":
            return "-"
        case dict():
            return ", ".join(f"{key}={_shown(each)}" for key, each in value.items()) or "-"
        case frozenset() | tuple():
            return ", ".join(map(_shown, sorted(value) if isinstance(value, frozenset) else value))
        case _:
            return _CREDENTIALS.sub(f"{HIDDEN}@", str(value))
