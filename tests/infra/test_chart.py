"""What the chart renders: valid for Kubernetes and the operators, restricted, and without a secret.

Rendered by Helm itself and checked against the schemas of Kubernetes and of the operators' resources. Without
Helm, and without Go to build it with, the tests are skipped and say so.
"""

import copy
import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from jsonschema import Draft202012Validator

from slackwater.settings.loading import NOT_SETTINGS, setting_fields
from tests.infra.chart_tools import MissingToolError, find_helm, resource_schema

CHART = Path(__file__).parents[2] / "infra" / "charts" / "slackwater"
EXAMPLE = CHART.parent / "examples" / "values.yaml"
KUBERNETES = "1.37"
Values = dict[str, Any]
Resource = dict[str, Any]
Render = Callable[..., list[Resource]]


@pytest.fixture(scope="module")
def helm() -> Path:
    try:
        return find_helm()
    except MissingToolError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def render(helm: Path, tmp_path_factory: pytest.TempPathFactory) -> Render:
    """Renders the chart with values; raises CalledProcessError with Helm's message where it refuses them."""
    folder = tmp_path_factory.mktemp("values")

    def run(values: Values, release: str = "sw") -> list[Resource]:
        file = folder / "values.yaml"
        file.write_text(yaml.safe_dump(values))
        argv: list[str | Path] = [
            helm,
            "template",
            release,
            str(CHART),
            "--kube-version",
            f"{KUBERNETES}.0",
            "--values",
            file,
        ]
        found = subprocess.run(argv, capture_output=True, text=True, check=True)
        return [each for each in yaml.safe_load_all(found.stdout) if each]

    return run


@pytest.fixture
def values() -> Values:
    found: Values = yaml.safe_load(EXAMPLE.read_text())
    return found


@pytest.fixture(scope="module")
def resources(render: Render) -> list[Resource]:
    """What the example gives."""
    return render(yaml.safe_load(EXAMPLE.read_text()))


def of_kind(resources: list[Resource], kind: str, name: str) -> Resource:
    [found] = [each for each in resources if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


def problems(resource: Resource) -> list[str]:
    """Checks a resource against the schema of its kind; fields that the kind does not have are problems."""
    try:
        kubernetes_validate.validate(resource, KUBERNETES, strict=True)
    except kubernetes_validate.ValidationError as error:
        return [error.message]
    except kubernetes_validate.SchemaNotFoundError:
        validator = Draft202012Validator(resource_schema(resource["apiVersion"], resource["kind"]))
        return [f"{each.json_path}: {each.message}" for each in validator.iter_errors(resource)]
    return []


def pods(resources: list[Resource]) -> Iterator[tuple[str, Resource, list[Resource]]]:
    """Yields name, security and containers of all pods that come of the resources."""
    for each in resources:
        name, spec = each["metadata"]["name"], each.get("spec", {})
        if each["kind"] == "Deployment":
            pod = spec["template"]["spec"]
            yield name, pod["securityContext"], pod["containers"]
        elif each["kind"] == "SparkApplication":
            for role in ("driver", "executor"):
                yield f"{name}/{role}", spec[role]["podSecurityContext"], [spec[role]]


def refusal(render: Render, values: Values) -> str:
    with pytest.raises(subprocess.CalledProcessError) as error:
        render(values)
    return str(error.value.stderr)


def test_every_resource_is_valid_for_kubernetes_and_the_operators(render: Render, values: Values) -> None:
    values["sidecars"]["shop"]["config"] = "[sidecar]\nworkers = 2\n"
    resources = render(values)
    assert {each["kind"] for each in resources} == {
        "ConfigMap",
        "Deployment",
        "NetworkPolicy",
        "PodDisruptionBudget",
        "Role",
        "RoleBinding",
        "Service",
        "ServiceAccount",
        "ServiceMonitor",
        "SparkApplication",
    }
    found = {f"{each['kind']} {each['metadata']['name']}": problems(each) for each in resources}
    assert {name: why for name, why in found.items() if why} == {}


@pytest.mark.parametrize("kind", ["Deployment", "ServiceMonitor", "SparkApplication"])
def test_a_field_that_a_kind_does_not_have_is_noticed(kind: str, resources: list[Resource]) -> None:
    found, *_ = [copy.deepcopy(each) for each in resources if each["kind"] == kind]
    found["spec"]["replcas"] = 2
    assert problems(found) != []


def test_names_of_resources_of_a_kind_differ_even_if_a_sidecar_and_a_pipeline_have_one_name(
    render: Render, values: Values
) -> None:
    values["pipelines"]["shop"] = values["pipelines"].pop("revenue")
    names = [(each["kind"], each["metadata"]["name"]) for each in render(values)]
    assert len(names) == len(set(names))


def test_without_sidecars_and_pipelines_nothing_is_made(render: Render) -> None:
    assert render({}) == []


def test_no_pod_is_root_or_may_become_it_or_writes_to_its_image(resources: list[Resource]) -> None:
    found = list(pods(resources))
    assert [name for name, _, _ in found] == ["sw-shop-sidecar", "sw-revenue/driver", "sw-revenue/executor"]
    for name, security, containers in found:
        assert security["runAsNonRoot"] is True, name
        assert security["runAsUser"] > 0, name
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}, name
        for container in containers:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "runAsNonRoot": True,
                "capabilities": {"drop": ["ALL"]},
            }, name


def test_a_sidecar_has_two_replicas_probes_resources_and_a_disruption_budget(
    resources: list[Resource],
) -> None:
    deployment = of_kind(resources, "Deployment", "sw-shop-sidecar")
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    assert deployment["spec"]["replicas"] == 2
    probes = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    assert probes == {
        "startup": {"path": "/healthz", "port": "http", "scheme": "HTTP"},
        "liveness": {"path": "/healthz", "port": "http", "scheme": "HTTP"},
        "readiness": {"path": "/readyz", "port": "http", "scheme": "HTTP"},
    }
    assert set(container["resources"]["requests"]) == {"cpu", "memory"}
    assert "memory" in container["resources"]["limits"]
    budget = of_kind(resources, "PodDisruptionBudget", "sw-shop-sidecar")
    assert budget["spec"]["selector"] == deployment["spec"]["selector"]
    assert budget["spec"]["maxUnavailable"] == 1


def test_one_replica_has_no_budget_that_would_keep_a_node_from_being_emptied(
    render: Render, values: Values
) -> None:
    values["sidecars"]["shop"]["replicas"] = 1
    values["pipelines"]["revenue"]["executor"]["instances"] = 1
    assert [each for each in render(values) if each["kind"] == "PodDisruptionBudget"] == []


@pytest.mark.parametrize("name", ["sw-shop-sidecar", "sw-revenue"])
def test_metrics_are_scraped_where_a_service_has_them(name: str, resources: list[Resource]) -> None:
    monitor = of_kind(resources, "ServiceMonitor", name)
    service = of_kind(resources, "Service", name)
    labels = service["metadata"]["labels"]
    wanted = monitor["spec"]["selector"]["matchLabels"]
    assert wanted.items() <= labels.items()
    assert [each["port"] for each in monitor["spec"]["endpoints"]] == ["http"]
    assert "http" in [port["name"] for port in service["spec"]["ports"]]
    assert monitor["metadata"]["labels"]["release"] == "prometheus"


@pytest.mark.parametrize(
    ("kind", "name", "peers"),
    [
        (
            "NetworkPolicy",
            "sw-shop-sidecar",
            [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}],
        ),
        (
            "NetworkPolicy",
            "sw-revenue",
            [{"podSelector": {"matchLabels": {"slackwater/pipeline": "revenue"}}}],
        ),
    ],
)
def test_only_named_pods_reach_a_pod(
    kind: str, name: str, peers: list[Resource], resources: list[Resource]
) -> None:
    policy = of_kind(resources, kind, name)["spec"]
    [peer] = policy["ingress"][0]["from"]
    assert set(peer) == set(peers[0])
    for part, selector in peers[0].items():
        assert selector["matchLabels"].items() <= peer[part]["matchLabels"].items()
    assert policy["policyTypes"] == ["Ingress", "Egress"]


def test_a_pipeline_is_run_by_name_with_its_checkpoint_and_a_fixed_number_of_executors(
    resources: list[Resource],
) -> None:
    spec = of_kind(resources, "SparkApplication", "sw-revenue")["spec"]
    assert spec["image"] == "revenue:1.2.0"
    assert spec["mainApplicationFile"] == "local:///opt/slackwater/bin/slackwater-run.py"
    assert spec["arguments"] == ["revenue==1.2.0"]
    assert spec["sparkConf"]["spark.dynamicAllocation.enabled"] == "false"
    assert spec["restartPolicy"]["type"] == "Always"
    assert spec["executor"]["instances"] == 2
    assert spec["sparkVersion"] in _spark_versions()
    environment = {each["name"]: each.get("value") for each in spec["driver"]["env"]}
    assert environment["SLACKWATER_RUN_CHECKPOINT"] == "s3://slackwater/revenue"


def test_a_driver_is_asked_whether_it_is_well_where_it_answers(resources: list[Resource]) -> None:
    driver = of_kind(resources, "SparkApplication", "sw-revenue")["spec"]["driver"]
    environment = {each["name"]: each.get("value") for each in driver["env"]}
    [container] = driver["template"]["spec"]["containers"]
    paths = {"startupProbe": "/healthz", "livenessProbe": "/healthz", "readinessProbe": "/readyz"}
    for name, path in paths.items():
        asked = container[name]["httpGet"]
        assert environment["SLACKWATER_RUN_HTTP"] == f"0.0.0.0:{asked['port']}"
        assert asked["path"] == path


def test_executors_and_prometheus_find_a_driver_that_is_not_ready_yet(resources: list[Resource]) -> None:
    """It is ready after its first batch, which takes executors, which take the driver's address."""
    spec = of_kind(resources, "SparkApplication", "sw-revenue")["spec"]
    assert spec["sparkConf"]["spark.kubernetes.driver.service.publishNotReadyAddresses"] == "true"
    assert of_kind(resources, "Service", "sw-revenue")["spec"]["publishNotReadyAddresses"] is True


def _spark_versions() -> list[str]:
    lock = (CHART.parents[2] / "requirements.lock").read_text()
    return re.findall(r"^pyspark==(\S+)", lock, re.MULTILINE)


def test_secrets_come_by_reference_to_keys_of_secrets(resources: list[Resource]) -> None:
    sidecar, pipeline = (
        {
            "SLACKWATER_KAFKA_SASL_PASSWORD": {"name": user, "key": "password"},
            "SLACKWATER_REDIS_URL": {"name": "slackwater-redis", "key": "url"},
        }
        for user in ("sidecar-shop", "revenue")
    )
    of_s3 = {
        "AWS_ACCESS_KEY_ID": {"name": "slackwater-s3", "key": "id"},
        "AWS_SECRET_ACCESS_KEY": {"name": "slackwater-s3", "key": "secret"},
    }
    wanted = [sidecar, pipeline | of_s3, of_s3]
    for (name, _, [container]), references in zip(pods(resources), wanted, strict=True):
        found = {
            each["name"]: each["valueFrom"]["secretKeyRef"]
            for each in container["env"]
            if "valueFrom" in each
        }
        assert found == references, name
    assert not [each for each in resources if each["kind"] == "Secret"]


def test_pages_with_a_certificate_are_asked_for_over_tls_and_with_the_monitor_s_token(
    render: Render, values: Values
) -> None:
    values["settings"] |= {
        "http.certificate": "/etc/slackwater/http/tls.crt",
        "http.key": "/etc/slackwater/http/tls.key",
        "http.tokens": "/etc/slackwater/http/tokens",
    }
    endpoint = {
        "authorization": {"credentials": {"name": "slackwater-prometheus", "key": "token"}},
        "tlsConfig": {"ca": {"secret": {"name": "slackwater-http", "key": "ca.crt"}}},
    }
    values["serviceMonitor"]["endpoint"] = endpoint
    found = render(values)
    assert [why for each in found for why in problems(each)] == []
    deployment = of_kind(found, "Deployment", "sw-shop-sidecar")["spec"]["template"]["spec"]
    driver = of_kind(found, "SparkApplication", "sw-revenue")["spec"]["driver"]["template"]["spec"]
    containers = [*deployment["containers"], *driver["containers"]]
    probes = [part for each in containers for name, part in each.items() if name.endswith("Probe")]
    assert [probe["httpGet"]["scheme"] for probe in probes] == ["HTTPS"] * 6
    for name in ("sw-shop-sidecar", "sw-revenue"):
        [scraped] = of_kind(found, "ServiceMonitor", name)["spec"]["endpoints"]
        assert scraped["scheme"] == "https"
        assert endpoint.items() <= scraped.items()


def test_a_secret_may_be_a_file_whose_name_is_no_secret(render: Render, values: Values) -> None:
    sidecar = values["sidecars"]["shop"]
    del sidecar["secretSettings"]["kafka.sasl_password"]
    sidecar["settings"]["kafka.sasl_password_file"] = "/etc/slackwater/kafka/password"
    [container] = of_kind(render(values), "Deployment", "sw-shop-sidecar")["spec"]["template"]["spec"][
        "containers"
    ]
    variables = {each["name"]: each.get("value") for each in container["env"]}
    assert variables["SLACKWATER_KAFKA_SASL_PASSWORD_FILE"] == "/etc/slackwater/kafka/password"


def test_services_and_budgets_select_the_pods_that_they_are_for(resources: list[Resource]) -> None:
    template = of_kind(resources, "Deployment", "sw-shop-sidecar")["spec"]["template"]
    service = of_kind(resources, "Service", "sw-shop-sidecar")
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    spec = of_kind(resources, "SparkApplication", "sw-revenue")["spec"]
    # Spark adds the label of the role.
    driver = spec["driver"]["labels"] | {"spark-role": "driver"}
    executor = spec["executor"]["labels"] | {"spark-role": "executor"}
    selected = of_kind(resources, "Service", "sw-revenue")["spec"]["selector"]
    assert selected.items() <= driver.items()
    assert not selected.items() <= executor.items()
    budget = of_kind(resources, "PodDisruptionBudget", "sw-revenue")["spec"]
    assert budget["selector"]["matchLabels"].items() <= executor.items()
    assert not budget["selector"]["matchLabels"].items() <= driver.items()
    assert budget["minAvailable"] == spec["executor"]["instances"] - 1


def test_every_variable_is_a_setting_that_the_commands_know(resources: list[Resource]) -> None:
    known = {name for field in setting_fields() for name in field.variables} | set(NOT_SETTINGS)
    found = {each["name"] for _, _, [container] in pods(resources) for each in container["env"]}
    ours = {name for name in found if name.startswith("SLACKWATER_")}
    assert ours - known == set()
    assert len(ours) > 8


def test_kubernetes_adds_no_variables_that_the_commands_would_refuse(resources: list[Resource]) -> None:
    """A service named slackwater-x gives each pod SLACKWATER_X_PORT, which is no setting."""
    deployment = of_kind(resources, "Deployment", "sw-shop-sidecar")
    assert deployment["spec"]["template"]["spec"]["enableServiceLinks"] is False
    spec = of_kind(resources, "SparkApplication", "sw-revenue")["spec"]
    for role in ("driver", "executor"):
        assert spec[role]["template"]["spec"]["enableServiceLinks"] is False


def test_settings_of_a_part_win_over_those_of_all(render: Render, values: Values) -> None:
    values["settings"]["timeline"] = 1
    values["sidecars"]["shop"]["settings"] = {"timeline": 2, "redis.url": "redis://other:6379"}
    values["pipelines"]["revenue"]["secretSettings"] = {"timeline": {"name": "t", "key": "k"}}
    variables = [
        {each["name"]: each for each in container["env"]} for _, _, [container] in pods(render(values))
    ]
    assert variables[0]["SLACKWATER_TIMELINE"]["value"] == "2"
    assert variables[0]["SLACKWATER_REDIS_URL"]["value"] == "redis://other:6379"
    assert variables[1]["SLACKWATER_TIMELINE"]["valueFrom"]["secretKeyRef"] == {"name": "t", "key": "k"}
    for _, _, [container] in pods(render(values)):
        names = [each["name"] for each in container["env"]]
        assert len(names) == len(set(names))


def test_a_settings_file_is_mounted_and_its_change_starts_the_pods_anew(
    render: Render, values: Values
) -> None:
    seen = []
    for text in ("[sidecar]\nworkers = 1\n", "[sidecar]\nworkers = 2\n"):
        values["sidecars"]["shop"]["config"] = text
        found = render(values)
        assert of_kind(found, "ConfigMap", "sw-shop-sidecar")["data"] == {"slackwater.toml": text}
        seen.append(of_kind(found, "Deployment", "sw-shop-sidecar")["spec"]["template"])
    assert seen[0]["metadata"]["annotations"] != seen[1]["metadata"]["annotations"]
    [container] = seen[0]["spec"]["containers"]
    variables = {each["name"]: each.get("value") for each in container["env"]}
    [mount] = [each for each in container["volumeMounts"] if each["name"] == "config"]
    assert variables["SLACKWATER_CONFIG"] == f"{mount['mountPath']}/slackwater.toml"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"settings": {"kafka.sasl_password": "x"}}, "kafka.sasl_password"),
        ({"settings": {"telemetry.token": "x"}}, "telemetry.token"),
        ({"settings": {"redis.url": "redis://:secret@redis:6379"}}, "redis.url"),
        ({"settings": {"run.checkpoint": "/var/x"}}, "run.checkpoint"),
        ({"setings": {}}, "setings"),
        ({"sidecars": {"shop": {}}}, "sources"),
        ({"sidecars": {"shop": {"sources": ["shop"], "replicas": 0}}}, "replicas"),
        ({"sidecars": {"shop": {"sources": ["shop"], "port": 80}}}, "port"),
        ({"sidecars": {"shop": {"sources": ["shop"], "controlPlane": {"enabled": True}}}}, "tokens"),
        ({"pipelines": {"revenue": {"pipeline": "revenue"}}}, "checkpoint"),
        ({"pipelines": {"Revenue": {"pipeline": "revenue", "checkpoint": "s3://b"}}}, "Revenue"),
        ({"pipeline": {"sparkConf": {"spark.hadoop.fs.s3a.secret.key": "x"}}}, "fs.s3a.secret.key"),
        ({"secretSettings": {"redis.url": "redis://redis"}}, "redis.url"),
    ],
)
def test_wrong_values_are_refused_by_name(change: Values, named: str, render: Render, values: Values) -> None:
    assert named in refusal(render, values | change)


def test_every_value_has_a_place_in_the_schema() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    assert set(defaults) <= set(schema["properties"])
    for part in ("sidecar", "pipeline"):
        assert set(defaults[part]) <= set(schema["properties"][part]["properties"])
