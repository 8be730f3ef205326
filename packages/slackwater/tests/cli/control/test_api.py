"""The routes of the control plane, over a picture that is given.

How the promises were seen to fail. Roles: ``refused`` returns nothing. One truth: an answer that is not the
picture's. Bodies: ``LARGEST_BODY`` is not looked at.
"""

import asyncio
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import jsonschema
import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from slackwater.cli.commands.status import AwaitedPartition, AwaitedTransaction, SourceReport
from slackwater.cli.control.api import LARGEST_BODY, ROOT, ROUTES, control_routes, openapi
from slackwater.cli.control.picture import (
    ClusterPicture,
    DecisionAnswer,
    DecisionRequest,
    SwitchAnswer,
    SwitchRequest,
)
from slackwater.cli.control.server import control_settings
from slackwater.cli.diagnosis import Cause, Finding
from slackwater.cli.revisions import RevisionStatus, revision_status
from slackwater.command.http_server import make_app
from slackwater.command.listening import Role, new_token
from slackwater.control import (
    DelayCourse,
    DelayHistory,
    Delays,
    LeaseStanding,
    LeaseState,
    SourceSnapshot,
    Topology,
    find_snapshots,
    make_topology,
    measure_delays,
)
from slackwater.cuts import TopicUnavailableError
from slackwater.protocol import CommitPosition, InputError, Lease, PipelineEntry
from slackwater.protocol.metrics import CONTROL_METRICS
from slackwater.settings.model import ControlSection
from slackwater_lab.fakes.topics import REGISTRATION

NAME, SOURCE = REGISTRATION.pipeline, REGISTRATION.source
FUNCTION = replace(REGISTRATION, pipeline=f"{NAME}/7f1c02aa", run="2")
TOPOLOGY = make_topology(
    [PipelineEntry(REGISTRATION, 0, 1_000), PipelineEntry(FUNCTION, 1, 1_000)], {}, 2_000
)
REPORT = SourceReport(
    source=SOURCE,
    is_healthy=False,
    state="stalled",
    timeline=1,
    frontier="0/600",
    delay_ms=12,
    newest_end=None,
    without_topic=("s.b",),
    open_transactions=(
        AwaitedTransaction(
            xid=7,
            commit_lsn="0/700",
            since_ms=1,
            expected={"s.a": 3},
            received={"s.a": 2},
            partitions={"inv.s.a/0": AwaitedPartition(first=1, next=3, end=None)},
        ),
    ),
    pipelines=TOPOLOGY.pipelines,
    findings=(Finding(cause=Cause.DROPPED, what="rows are missing", evidence=("a",), advice=("b",)),),
)


LEASE = LeaseStanding(
    Lease(
        id="4f",
        source=SOURCE,
        timeline=1,
        commit_lsn=7,
        pipelines=(NAME,),
        holder="a report",
        taken_ms=1_000,
        expires_ms=2_000,
    ),
    LeaseState.TAKEN,
    (NAME,),
    {},
)


@dataclass
class GivenPicture:
    """Answers what it is asked to."""

    error: Exception | None = None
    decided: list[tuple[str, DecisionRequest, str]] = field(default_factory=list)
    held: dict[str, LeaseStanding] = field(default_factory=lambda: {LEASE.lease.id: LEASE})
    switched: list[tuple[str, SwitchRequest]] = field(default_factory=list)

    def topology(self) -> Topology:
        if self.error is not None:
            raise self.error
        return TOPOLOGY

    def report(self, source: str) -> SourceReport:
        return replace(REPORT, source=source)

    def leases(self) -> tuple[LeaseStanding, ...]:
        return tuple(self.held.values())

    def end_lease(self, lease_id: str) -> bool:
        return self.held.pop(lease_id, None) is not None

    def delays(self) -> Delays:
        return measure_delays(self.topology())

    def delay_history(self, pipeline: str) -> DelayCourse:
        history = DelayHistory()
        history.add(measure_delays(TOPOLOGY))
        return history.of(pipeline)

    def snapshots(self) -> tuple[SourceSnapshot, ...]:
        return find_snapshots(TOPOLOGY, {SOURCE: [CommitPosition(1, 0x500)]})

    def decide(self, source: str, request: DecisionRequest, client: str) -> DecisionAnswer:
        if request.to_lsn == "0/1":
            raise InputError("nothing was decided: it is below", "name another")
        self.decided.append((source, request, client))
        return DecisionAnswer(lines=("passed",), cut_log_offset=None if request.dry_run else 4)

    def revisions(self, pipeline: str) -> tuple[RevisionStatus, ...]:
        return revision_status(TOPOLOGY, TOPOLOGY, pipeline, {"topics": NAME})

    def switch(self, pipeline: str, request: SwitchRequest) -> SwitchAnswer:
        if request.revision > 1:
            raise InputError("the revision is behind; not switched", "wait")
        self.switched.append((pipeline, request))
        return SwitchAnswer(pipeline=pipeline, commit="1/0/64", before=None)


class Api:
    """The application with a client of each role."""

    def __init__(self, tokens: Path | None) -> None:
        self.picture = GivenPicture()
        section = ControlSection(listen="127.0.0.1:0", tokens=tokens, requests_per_second=1e6)
        routes = control_routes(cast(ClusterPicture, self.picture), has_tokens=tokens is not None)
        app = make_app(routes, control_settings(section))
        self.client = TestClient(app, "http://127.0.0.1:8086", raise_server_exceptions=False)

    def get(self, path: str, token: str = "", **headers: str) -> Any:
        return self.client.get(path, headers=self._headers(token) | headers)

    def decide(self, token: str = "", source: str = SOURCE, **body: Any) -> Any:
        content = {"kind": "skip", "to_lsn": "0/700", **body}
        return self.client.post(
            f"{ROOT}/sources/{source}/decisions", json=content, headers=self._headers(token)
        )

    def _headers(self, token: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {token}"} if token else {}


@pytest.fixture
def api() -> Api:
    return Api(None)


@pytest.fixture(scope="session")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    path, found = tmp_path_factory.mktemp("tokens") / "tokens.toml", {}
    with path.open("w") as file:
        for role in Role:
            found[str(role)], entry = new_token(f"the {role}", role)
            file.write(entry)
    return path, found


PARAMETERS = {"source": SOURCE, "pipeline": NAME, "lease": LEASE.lease.id}


def paths() -> list[str]:
    return [ROOT + re.sub(r"{(\w+)[^}]*}", lambda m: PARAMETERS[m[1]], r.path) for r in ROUTES]


def test_every_answer_is_as_its_description_says(api: Api) -> None:
    described = api.get(f"{ROOT}/openapi.json").json()
    assert described == msgspec.json.decode(msgspec.json.encode(openapi()))
    for route, path in zip(ROUTES, paths(), strict=True):
        answer = api.get(path) if route.method == "GET" else None
        if answer is None:
            continue
        assert answer.status_code == 200, path
        (operation,) = described["paths"][ROOT + route.path.replace(":path", "")].values()
        schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
        jsonschema.Draft202012Validator({**schema, "components": described["components"]}).validate(
            answer.json()
        )
        assert operation["operationId"] == route.name
    for kind in ("DecisionRequest", "DecisionAnswer", "Problem", "Topology", "SourceReport", "PipelineNode"):
        assert kind in described["components"]["schemas"]


def test_the_answers_are_the_pictures(api: Api) -> None:
    assert api.get(f"{ROOT}/topology").content == msgspec.json.encode(TOPOLOGY)
    assert [each["name"] for each in api.get(f"{ROOT}/pipelines").json()] == [NAME, FUNCTION.pipeline]
    assert api.get(f"{ROOT}/pipelines/{NAME}").json()["name"] == NAME
    assert api.get(f"{ROOT}/pipelines/{FUNCTION.pipeline}").json()["run"] == "2"
    assert [each["name"] for each in api.get(f"{ROOT}/sources").json()] == ["inv", "shop"]
    found = api.get(f"{ROOT}/sources/{SOURCE}")
    assert found.content == msgspec.json.encode(REPORT)


def test_prometheus_gets_the_metrics_of_the_cluster_with_a_token(tokens: tuple[Path, dict[str, str]]) -> None:
    api = Api(None)
    answer = api.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    families = {family.name: family for family in text_string_to_metric_families(answer.text)}
    assert {name.removesuffix("_total") for name in (m.name for m in CONTROL_METRICS)} == families.keys()
    states = {sample.labels["state"]: sample.value for sample in families["slackwater_pipelines"].samples}
    assert states == {"running": 2, "left": 0, "failed": 0, "vanished": 0}
    leases = {sample.labels["state"]: sample.value for sample in families["slackwater_leases"].samples}
    assert leases["taken"] == 1
    api.picture.error = TopicUnavailableError("read", "slackwater.pipelines", "no answer")
    assert api.get("/metrics").status_code == 503

    guarded = Api(tokens[0])
    assert guarded.get("/metrics").status_code == 401
    assert guarded.get("/metrics", tokens[1]["viewer"]).status_code == 200


def test_only_an_operator_ends_a_lease_and_only_one_that_is_there(
    tokens: tuple[Path, dict[str, str]],
) -> None:
    path, token_of = tokens
    api = Api(path)

    def end(lease: str, token: str) -> Any:
        headers = {"Authorization": f"Bearer {token}"}
        return api.client.post(f"{ROOT}/leases/{lease}", json={"end": True}, headers=headers)

    assert end("4f", token_of["viewer"]).status_code == 403
    assert end("5", token_of["operator"]).status_code == 404
    assert [each["lease"]["id"] for each in api.get(f"{ROOT}/leases", token_of["viewer"]).json()] == ["4f"]
    assert end("4f", token_of["operator"]).json() == []
    assert end("4f", token_of["operator"]).status_code == 404


@pytest.mark.parametrize("path", ["/pipelines/none", "/sources/none", "/pipelines/", "/none", "/openapi"])
def test_what_is_not_there_is_said_so(api: Api, path: str) -> None:
    answer = api.get(ROOT + path)
    assert answer.status_code == 404
    assert set(answer.json()) == {"error", "hint"}


def test_an_unknown_source_is_not_decided_about(tokens: tuple[Path, dict[str, str]]) -> None:
    api = Api(tokens[0])
    assert api.decide(tokens[1]["operator"], source="none").status_code == 404
    assert api.picture.decided == []


def test_only_an_operator_decides(tokens: tuple[Path, dict[str, str]]) -> None:
    path, token_of = tokens
    api = Api(path)
    assert api.decide().status_code == 401
    assert api.decide("x").status_code == 401
    assert api.decide(token_of["viewer"]).status_code == 403
    assert api.picture.decided == []
    assert api.decide(token_of["operator"], reason="dropped").json() == {
        "lines": ["passed"],
        "cut_log_offset": 4,
    }
    ((source, request, client),) = api.picture.decided
    assert (source, request.to_lsn, request.reason, client) == (SOURCE, "0/700", "dropped", "the operator")


def test_without_tokens_everybody_reads_and_nobody_decides(api: Api) -> None:
    assert api.get(f"{ROOT}/topology").status_code == 200
    answer = api.decide()
    assert answer.status_code == 403
    assert "control.tokens" in answer.json()["hint"]
    assert api.picture.decided == []


def test_with_tokens_nobody_reads_without_one(tokens: tuple[Path, dict[str, str]]) -> None:
    path, token_of = tokens
    api = Api(path)
    for url in (each for each, route in zip(paths(), ROUTES, strict=True) if route.method == "GET"):
        assert api.get(url).status_code == 401, url
        assert api.get(url).headers["WWW-Authenticate"] == "Bearer"
        assert api.get(url, "x").status_code == 401
        for role in Role:
            assert api.get(url, token_of[str(role)]).status_code == 200, url
    assert api.get("/").status_code == 200, "the page itself says nothing of anybody, and asks for the token"


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"", 400),
        (b"[]", 400),
        (b"{}", 400),
        (b'{"kind": "drop"}', 400),
        (b'{"kind": "skip", "to": "0/1"}', 400),
        (b'{"kind": "skip", "to_lsn": 7}', 400),
        (b'{"kind": "skip", "to_lsn": "0/1"}', 409),
        (b'{"kind": "skip", "reason": "' + b"x" * LARGEST_BODY + b'"}', 413),
        (b"\xff" * 100, 400),
    ],
)
def test_a_decision_that_cannot_be_read_or_taken_is_refused(
    tokens: tuple[Path, dict[str, str]], content: bytes, status: int
) -> None:
    api = Api(tokens[0])
    headers = {"Authorization": f"Bearer {tokens[1]['operator']}", "Content-Type": "application/json"}
    answer = api.client.post(f"{ROOT}/sources/{SOURCE}/decisions", content=content, headers=headers)
    assert answer.status_code == status
    assert answer.json()["error"]
    assert api.picture.decided == []


def test_a_form_of_another_site_cannot_decide(tokens: tuple[Path, dict[str, str]]) -> None:
    api = Api(tokens[0])
    headers = {"Authorization": f"Bearer {tokens[1]['operator']}", "Content-Type": "text/plain"}
    answer = api.client.post(
        f"{ROOT}/sources/{SOURCE}/decisions", content=b'{"kind":"skip"}', headers=headers
    )
    assert answer.status_code == 415
    asked = api.client.options(
        f"{ROOT}/topology", headers={"Origin": "http://other", "Access-Control-Request-Method": "GET"}
    )
    assert "access-control-allow-origin" not in asked.headers
    assert "access-control-allow-origin" not in api.get(f"{ROOT}/topology", Origin="http://other").headers


def test_methods_that_a_route_has_not_are_refused(api: Api) -> None:
    assert api.client.post(f"{ROOT}/topology").status_code == 405
    assert api.client.delete(f"{ROOT}/pipelines/{NAME}").status_code == 405
    assert api.client.get(f"{ROOT}/sources/{SOURCE}/decisions").status_code == 404


def test_an_answer_that_the_client_has_is_not_sent_again(api: Api) -> None:
    for path in (f"{ROOT}/topology", "/", f"{ROOT}/openapi.json"):
        first = api.get(path)
        again = api.get(path, **{"If-None-Match": first.headers["ETag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert api.get(path, **{"If-None-Match": '"other"'}).content == first.content


def test_servers_that_are_away_are_said_so_and_a_fault_tells_nobody_of_itself(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    api.picture.error = TopicUnavailableError("read", "slackwater.pipelines", "no answer")
    answer = api.get(f"{ROOT}/topology")
    assert answer.status_code == 503
    assert "no answer" in answer.json()["error"]
    api.picture.error = ZeroDivisionError("of a secret")
    answer = api.get(f"{ROOT}/topology")
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert "of a secret" in caplog.text


def test_what_an_operator_has_decided_already_is_decided_again(tokens: tuple[Path, dict[str, str]]) -> None:
    api = Api(tokens[0])
    first = api.decide(tokens[1]["operator"])
    headers = {"Authorization": f"Bearer {tokens[1]['operator']}", "If-None-Match": first.headers["ETag"]}
    path, body = f"{ROOT}/sources/{SOURCE}/decisions", {"kind": "skip", "to_lsn": "0/700"}
    assert api.client.post(path, json=body, headers=headers).status_code == 200


def test_a_body_that_breaks_off_is_a_mistake_of_the_client(tokens: tuple[Path, dict[str, str]]) -> None:
    sent: list[Any] = []

    async def receive() -> dict[str, str]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = {"host": "127.0.0.1", "authorization": f"Bearer {tokens[1]['operator']}"}
    headers |= {"content-type": "application/json", "content-length": "100"}
    path = f"{ROOT}/sources/{SOURCE}/decisions"
    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b""}
    scope |= {"headers": [(name.encode(), value.encode()) for name, value in headers.items()]}
    scope |= {"client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "scheme": "http", "root_path": ""}
    app = Api(tokens[0]).client.app

    async def ask() -> None:
        await app(scope, receive, send)

    asyncio.run(ask())

    assert sent[0]["status"] == 400


@pytest.mark.parametrize(("role", "status"), [("", 401), ("viewer", 403), ("operator", 409)])
def test_who_was_refused_a_decision_is_logged_too(
    tokens: tuple[Path, dict[str, str]], caplog: pytest.LogCaptureFixture, role: str, status: int
) -> None:
    api = Api(tokens[0])
    assert api.decide(tokens[1].get(role, ""), to_lsn="0/1", dry_run=True).status_code == status
    (record,) = (each for each in caplog.records if each.name == "slackwater.cli.control.api")
    assert record.__dict__["status"] == status
    assert ("dry_run=True" in record.getMessage()) == (role == "operator")


def test_a_body_that_cannot_be_read_is_logged_too(
    tokens: tuple[Path, dict[str, str]], caplog: pytest.LogCaptureFixture
) -> None:
    api = Api(tokens[0])
    assert api.decide(tokens[1]["operator"], kind="drop").status_code == 400
    assert [
        each.__dict__["status"] for each in caplog.records if each.name == "slackwater.cli.control.api"
    ] == [400]


def test_decisions_are_logged_with_who_took_them(
    tokens: tuple[Path, dict[str, str]], caplog: pytest.LogCaptureFixture
) -> None:
    api = Api(tokens[0])
    api.decide(tokens[1]["operator"])
    (record,) = (each for each in caplog.records if each.name == "slackwater.cli.control.api")
    assert (record.__dict__["client"], record.__dict__["status"]) == ("the operator", 200)
    assert "to_lsn='0/700'" in record.getMessage()
    assert tokens[1]["operator"] not in caplog.text


def test_revisions_are_shown_and_readers_switched_by_an_operator(
    tokens: tuple[Path, dict[str, str]],
) -> None:
    path, of_role = tokens
    api = Api(path)
    viewer, operator = of_role[Role.VIEWER], of_role[Role.OPERATOR]
    (found,) = api.get(f"{ROOT}/revisions/{NAME}", viewer).json()
    assert (found["pipeline"], found["revision"], found["read_by"]) == (NAME, 1, ["topics"])
    assert api.get(f"{ROOT}/revisions/none", viewer).status_code == 404

    def switch(token: str, **body: Any) -> Any:
        headers = {"Authorization": f"Bearer {token}"}
        return api.client.post(f"{ROOT}/revisions/{NAME}/switch", json=body, headers=headers)

    assert switch(viewer, revision=1).status_code == 403
    assert switch(operator, revision=2).status_code == 409
    assert switch(operator, revision="1").status_code == 400
    assert api.picture.switched == []
    answer = {"pipeline": NAME, "commit": "1/0/64", "before": None}
    assert switch(operator, revision=1).json() == answer
    assert api.picture.switched == [(NAME, SwitchRequest(revision=1))]
