"""Helm and the schemas of custom resources, as Go modules and as jars; kept in the user's cache.

Every function raises :class:`MissingToolError` if Go, Java or what they fetch cannot be had, and ``KeyError``
for resources that no operator has.
"""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from slackwater.dev.java import JarSet, ensure_jars, find_java, ivy_fetch, parse_manifest
from slackwater.protocol import UnavailableError, user_cache

_CHARTS = Path(__file__).parents[2] / "infra/charts"
HELM = "helm.sh/helm/v3/cmd/helm@v3.22.0"
API_SERVER = "k8s.io/kubernetes/cmd/kube-apiserver"
ETCD = "go.etcd.io/etcd/server/v3"
SPARK_OPERATOR = "github.com/kubeflow/spark-operator/v2@v2.4.0"
PROMETHEUS_OPERATOR = "github.com/prometheus-operator/prometheus-operator@v0.85.0"
COMPOSE = "github.com/compose-spec/compose-go/v2@v2.16.2"
SUMS = {
    SPARK_OPERATOR: "h1:Bo5rz5dlhqYEa7e/TLtUEVXDMNRotnVaQ4VLCyeLeOc=",
    PROMETHEUS_OPERATOR: "h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s=",
    COMPOSE: "h1:pTp1DqQwJzFd85GzlWsSszKA1ABrV/ySqsClujIcWA8=",
}
"""What the modules hold, as Go computes it."""

STRIMZI_KINDS = ("connect.KafkaConnect", "connector.KafkaConnector", "topic.KafkaTopic", "user.KafkaUser")
STRIMZI_JAVA = 21

Schema = dict[str, Any]
"""A JSON Schema."""


class MissingToolError(Exception):
    """Something that checks the chart is not on this machine and cannot be installed here."""


@cache
def find_helm() -> Path:
    """Returns Helm: the one on PATH, else one that Go builds, once, which takes minutes."""
    if found := shutil.which("helm"):
        return Path(found)
    folder = _cache() / HELM.rpartition("/")[2]
    with _lock(folder):
        if not (folder / "helm").exists():
            _go("install", HELM, environment={"GOBIN": str(folder)})
    return folder / "helm"


@cache
def find_api_server() -> tuple[Path, Path]:
    """Returns Kubernetes' API server and etcd, which Go builds, once, which takes ten minutes.

    Their versions, and the sums of all modules, are those of the folder ``kubernetes``.
    """
    source = _CHARTS / "kubernetes"
    key = hashlib.sha256((source / "go.sum").read_bytes()).hexdigest()[:12]
    folder = _cache() / f"kubernetes-{key}"
    programs = folder / "kube-apiserver", folder / "etcd"
    with _lock(folder):
        for program, package in zip(programs, (API_SERVER, ETCD), strict=True):
            if not program.exists():
                options = ("-trimpath", "-ldflags", "-s -w", "-o", str(program))
                _go("build", "-C", str(source), *options, package, environment={"CGO_ENABLED": "0"})
    return programs


@cache
def resource_definition(api_version: str, kind: str) -> dict[str, Any]:
    """Returns the definition of a custom resource of the operators, as an API server takes it."""
    group = api_version.partition("/")[0]
    module, folder = {
        "sparkoperator.k8s.io": (SPARK_OPERATOR, "config/crd/bases"),
        "monitoring.coreos.com": (PROMETHEUS_OPERATOR, "example/prometheus-operator-crd"),
    }[group]
    text = (go_module(module) / folder / f"{group}_{kind.lower()}s.yaml").read_text()
    found: dict[str, Any] = yaml.safe_load(text)
    return found


@cache
def go_module(module: str) -> Path:
    """Returns the folder of a Go module; ``ValueError`` if its content is not the pinned one."""
    found = json.loads(_go("mod", "download", "-json", module))
    if found["Sum"] != SUMS[module]:
        raise ValueError(f"{module} has the sum {found['Sum']}, pinned is {SUMS[module]}")
    return Path(found["Dir"])


@cache
def resource_schema(api_version: str, kind: str) -> Schema:
    """Returns the schema of a custom resource, in which unknown fields are errors."""
    version = api_version.partition("/")[2]
    definition = resource_definition(api_version, kind)
    versions = {each["name"]: each["schema"]["openAPIV3Schema"] for each in definition["spec"]["versions"]}
    return _closed(versions[version])


@cache
def strimzi_schemas() -> dict[str, Schema]:
    """Returns the schemas of Strimzi's resources by kind, as Strimzi's own generator writes them."""
    try:
        java, jars = find_java(), _strimzi_jars()
    except UnavailableError as error:
        raise MissingToolError(str(error)) from error
    if java.version.major < STRIMZI_JAVA:
        found = f"this is {java.version.text}"
        raise MissingToolError(
            f"Strimzi's definitions are written with Java {STRIMZI_JAVA} or newer, {found}"
        )
    schemas = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in STRIMZI_KINDS:
            kind, file = name.rpartition(".")[2], Path(folder, "definition.yaml")
            wanted = f"io.strimzi.api.kafka.model.{name}={file}"
            command = (str(java.path), "-cp", jars.classpath, "io.strimzi.crdgenerator.CrdGenerator")
            subprocess.run((*command, "--yaml", wanted), check=True, capture_output=True)
            [version] = yaml.safe_load(file.read_text())["spec"]["versions"]
            schemas[kind] = _closed(version["schema"]["openAPIV3Schema"])
    return schemas


def _strimzi_jars() -> JarSet:
    folder = _CHARTS / "strimzi"
    wanted = JarSet(_cache() / "strimzi", parse_manifest((folder / "jars.sha256").read_text()))
    ensure_jars(wanted, ivy_fetch(folder / "ivy-pinned.xml"), lambda line: None)
    return wanted


def compose_schema() -> Schema:
    """Returns the schema of compose files."""
    found: Schema = json.loads((go_module(COMPOSE) / "schema" / "compose-spec.json").read_text())
    return found


def _closed(schema: Schema) -> Schema:
    """Closes objects that name their fields, as an API server does that is asked for strict validation."""
    parts = {name: _closed(part) for name, part in schema.get("properties", {}).items()}
    closed = dict(schema)
    if parts:
        closed["properties"] = parts
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            closed.setdefault("additionalProperties", False)
    for name in ("items", "additionalProperties"):
        if isinstance(schema.get(name), dict):
            closed[name] = _closed(schema[name])
    return closed


def _go(*arguments: str, environment: dict[str, str] | None = None) -> str:
    go = shutil.which("go")
    if go is None:
        raise MissingToolError("Go is not installed, which gets what the chart is checked with: install `go`")
    result = subprocess.run(
        [go, *arguments],
        env={**os.environ, **(environment or {})},
        cwd="/",  # a go.mod around would decide about versions
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode != 0:
        said = (result.stderr or result.stdout).strip().splitlines()
        raise MissingToolError(f"go {' '.join(arguments)}: {said[-1] if said else 'failed'}")
    return result.stdout


def _cache() -> Path:
    found = user_cache(os.environ)
    if found is None:
        raise MissingToolError("this account has no home folder: set SLACKWATER_CACHE")
    return found / "tools"


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Holds a folder against other processes that would fill it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
