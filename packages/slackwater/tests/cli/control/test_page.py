"""The page of the control plane in a real browser, over a picture that is given.

Needs Debian's packages chromium and chromium-driver; without them the tests say so. How the promises were
seen to fail. Text is text: ``fill`` in dom.js sets ``innerHTML``. In place: ``update`` removes all children
first. The cause of a delay: ``measure_delays`` blames nobody.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from selenium.webdriver import ActionChains, Chrome, ChromeOptions, ChromeService, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from slackwater.cli.commands.status import SourceReport
from slackwater.cli.control.api import control_routes
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
from slackwater.command.http_server import HttpServer
from slackwater.command.listening import Role, new_token
from slackwater.control import (
    DelayCourse,
    Delays,
    LeaseStanding,
    SourceSigns,
    SourceSnapshot,
    Topology,
    find_snapshots,
    lease_standings,
    make_topology,
    measure_delays,
)
from slackwater.cuts import TopicUnavailableError
from slackwater.protocol import (
    CommitPosition,
    ConnectorReport,
    Cut,
    FrontierState,
    FrontierStatus,
    Hold,
    Lease,
    LeaseRecord,
    PipelineEntry,
    PipelineRegistration,
    PipelineReport,
    RegisteredStage,
    RegisteredView,
    RunEnd,
    SystemClock,
    epoch_ms,
)
from slackwater.settings.model import ControlSection
from slackwater_lab.fakes.topics import REGISTRATION, make_cut

CHROMIUM, DRIVER = (shutil.which(name) for name in ("chromium", "chromedriver"))
SECONDS = 60
HOSTILE = "<img src=x onerror=document.title='owned'>"

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        CHROMIUM is None or DRIVER is None,
        reason="THE PAGE IS NOT TESTED: there is no Chromium; apt-get install chromium chromium-driver",
    ),
]


def now_ms() -> int:
    return epoch_ms(SystemClock().now())


def registration(name: str, source: str, writes: str = "", **others: Any) -> PipelineRegistration:
    view = RegisteredView(
        name=name,
        output=f"{writes}.public.{name}" if writes else name,
        kind="kafka",
        format="debezium" if writes else "json",
        output_source=writes,
        tables=("public.orders",),
        stages=(1,),
    )
    stage = RegisteredStage(
        number=1,
        level=1,
        key=("id",),
        tables=("public.orders",),
        stages=(),
        why="computes groups from their rows",
    )
    values = {"owner": "team shop", "base_name": name, "host": "host-7", **others}
    return replace(
        REGISTRATION,
        pipeline=name,
        run=name,
        source=source,
        tables={"public.orders": f"{source}.public.orders"},
        views=(view,),
        stages=(stage,),
        started_ms=now_ms() - 600_000,
        **values,
    )


def report(name: str, behind_ms: int = 0, events: int = 1000, end: RunEnd | None = None) -> PipelineReport:
    made_ms = now_ms()
    return PipelineReport(
        pipeline=name,
        run=name,
        batch_id=42,
        timeline=1,
        commit_lsn=0x600 - behind_ms,
        commit_ts_ms=made_ms - 200 - behind_ms,
        visible_ms=made_ms,
        parts_us={"plan": 12_000, "read": 30_000, "evaluate": 88_000, "commit": 20_000},
        events=10,
        documents=5,
        run_events=events,
        run_documents=events // 2,
        end=end,
    )


class LivePicture:
    """A cluster whose pipelines report for as long as they are not told to stall."""

    def __init__(self, *registrations: PipelineRegistration) -> None:
        self.registrations = list(registrations)
        self.stalled: dict[str, tuple[int, PipelineReport]] = {}
        """When they were last heard of, and what they said."""
        self.ended: dict[str, RunEnd] = {}
        self.is_away = False
        self.signs: tuple[SourceSigns, ...] = ()
        self.lease_records: list[LeaseRecord] = []
        self._asked = 0

    def stall(self, name: str) -> None:
        self.stalled[name] = now_ms(), report(name)

    def revisions(self, pipeline: str) -> tuple[RevisionStatus, ...]:
        assert pipeline == "shop"
        topology = self.topology()
        return revision_status(topology, topology, pipeline, {"topics": "shop"})

    def switch(self, pipeline: str, request: SwitchRequest) -> SwitchAnswer:
        raise NotImplementedError

    def topology(self) -> Topology:
        if self.is_away:
            raise TopicUnavailableError("read", "slackwater.pipelines", "no answer")
        self._asked += 1
        entries: list[PipelineEntry] = []
        made_ms = now_ms()
        for each in self.registrations:
            heard_ms, said = self.stalled.get(
                each.pipeline, (made_ms, report(each.pipeline, events=self._asked * 10))
            )
            said = replace(said, end=self.ended.get(each.pipeline))
            entries += [
                PipelineEntry(each, len(entries), heard_ms),
                PipelineEntry(said, len(entries) + 1, heard_ms),
            ]
        names = {each.source for each in self.registrations}
        # A stalled pipeline is behind, for its source has continued.
        return make_topology(entries, {name: self._cut(name, made_ms) for name in names}, made_ms)

    def _cut(self, source: str, made_ms: int) -> Cut:
        stalled = any(each.source == source and each.pipeline in self.stalled for each in self.registrations)
        return make_cut(source, 0x700 if stalled else 0x600, made_ms - 200)

    def report(self, source: str) -> SourceReport:
        return SourceReport(
            source=source,
            is_healthy=False,
            state="stalled",
            timeline=1,
            frontier="0/600",
            delay_ms=200,
            newest_end=None,
            without_topic=(),
            open_transactions=(),
            pipelines=(),
            findings=(
                Finding(
                    cause=Cause.DROPPED, what="rows are missing", evidence=("END counts 3",), advice=("skip",)
                ),
            ),
        )

    def leases(self) -> tuple[LeaseStanding, ...]:
        return tuple(lease_standings(self.lease_records, now_ms()))

    def end_lease(self, lease_id: str) -> bool:
        raise AssertionError("the page ends nothing")

    def delays(self) -> Delays:
        return measure_delays(self.topology(), self.signs)

    def delay_history(self, pipeline: str) -> DelayCourse:
        times = tuple(now_ms() - 30_000 * ago for ago in (3, 2, 1, 0))
        values = (None, 400, 7_000, 1_200)
        return DelayCourse(pipeline=pipeline, times_ms=times, views={pipeline: values, "none": (None,) * 4})

    def snapshots(self) -> tuple[SourceSnapshot, ...]:
        topology = self.topology()
        barriers = [CommitPosition(1, lsn) for lsn in (0x500, 0x600)]
        return find_snapshots(topology, {node.name: barriers for node in topology.sources})

    def decide(self, source: str, request: DecisionRequest, client: str) -> DecisionAnswer:
        raise AssertionError("the page decides nothing")


def chain() -> LivePicture:
    return LivePicture(
        registration("orders", "inv", "shop"),
        registration("revenue", "shop", "sums"),
        registration("forecast", "sums", owner="team finance"),
        registration("stock", "inv", owner="team stock"),
    )


def troubled() -> LivePicture:
    """A chain of which one pipeline stands still, one has failed, and a connector is paused."""
    picture = chain()
    picture.stall("orders")
    picture.ended["stock"] = RunEnd(ended_ms=now_ms(), failure="QueryFailedError: no disk")
    picture.signs = (
        SourceSigns(source="inv", status=replace(said("host-3-812"), connector=PAUSED)),
        SourceSigns(source="shop", status=said("host-3-813")),
    )
    return picture


def said(sidecar: str) -> FrontierStatus:
    return FrontierStatus(state=FrontierState.RUNNING, wall_ms=now_ms(), sidecar=sidecar)


PAUSED = ConnectorReport(read_ms=now_ms(), since_ms=now_ms() - 60_000, name="inv", state="PAUSED")


@contextmanager
def serving(picture: LivePicture, tokens: Path | None = None) -> Iterator[str]:
    section = ControlSection(listen="127.0.0.1:0", tokens=tokens, requests_per_second=1e6)
    routes = control_routes(cast(ClusterPicture, picture), has_tokens=tokens is not None)
    server = HttpServer(routes, control_settings(section))
    server.start()
    with closing(server):
        yield server.address


class Page:
    """What a person sees and does."""

    def __init__(self, browser: Chrome, address: str) -> None:
        self.browser = browser
        self._address = address

    def open(self, place: str = "") -> None:
        self.browser.get("about:blank")
        self.browser.get(f"{self._address}/{place}")
        self.sees(lambda: self.browser.find_elements(By.CSS_SELECTOR, "main h1"))

    def sees(self, condition: Callable[[], object]) -> None:
        WebDriverWait(self.browser, SECONDS, 0.05).until(lambda _: condition())

    @property
    def text(self) -> str:
        return str(self.browser.execute_script("return document.body.innerText"))

    def find(self, selector: str) -> list[Any]:
        return list(self.browser.find_elements(By.CSS_SELECTOR, selector))

    def press(self, *keys: str) -> None:
        ActionChains(self.browser).send_keys(*keys).perform()

    @property
    def focused(self) -> str:
        found = "return document.activeElement.textContent || document.activeElement.id"
        return str(self.browser.execute_script(found))

    def errors(self) -> list[str]:
        """What the browser's console says, but for answers that were refused, which it lists, too."""
        browser: Any = self.browser  # which does not say what its log is
        said = [str(entry["message"]) for entry in browser.get_log("browser")]
        return [text for text in said if "Failed to load resource" not in text]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    options = ChromeOptions()
    options.binary_location = str(CHROMIUM)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for argument in (
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--no-first-run",
        "--window-size=1280,900",
        f"--user-data-dir={tmp_path_factory.mktemp('chromium')}",
    ):
        options.add_argument(argument)
    found = Chrome(options, ChromeService(str(DRIVER)))
    found.set_page_load_timeout(SECONDS)
    yield found
    found.quit()


@pytest.fixture
def open_page(browser: Chrome) -> Iterator[Callable[..., Page]]:
    """Serves a picture and opens its page; whatever the browser complains of fails the test."""
    pages: list[Page] = []
    servers: list[Any] = []

    def open_it(picture: LivePicture, place: str = "", tokens: Path | None = None) -> Page:
        server = serving(picture, tokens)
        address = server.__enter__()
        servers.append(server)
        page = Page(browser, address)
        pages.append(page)
        page.errors()  # of the page before
        page.open(place)
        return page

    yield open_it
    complaints = [error for page in pages for error in page.errors()]
    browser.get("about:blank")
    for server in servers:
        server.__exit__(None, None, None)
    assert complaints == []


def test_the_overview_shows_what_hangs_together_and_that_nobody_is_late(
    open_page: Callable[..., Page],
) -> None:
    page = open_page(chain())
    page.sees(lambda: "Nothing is late." in page.text)
    shown = {each.get_attribute("aria-label").split(":")[0] for each in page.find(".graph a")}
    names = ("orders", "revenue", "forecast", "stock")
    assert shown == {"source inv", "source shop", "source sums", *(f"pipeline {name}" for name in names)}
    assert len(page.find(".edge")) == 6
    assert "3 sources, 4 pipelines (4 running), 4 views" in page.text


@pytest.mark.full
def test_a_pipeline_that_stalls_is_named_with_all_that_waits_for_it(
    open_page: Callable[..., Page], pytestconfig: pytest.Config
) -> None:
    picture, clock = chain(), SystemClock()
    page = open_page(picture)
    page.sees(lambda: "Nothing is late." in page.text)
    picture.stall("orders")
    since = clock.monotonic()
    page.sees(lambda: "pipeline orders on host-7" in page.text)
    seconds = clock.monotonic() - since
    pytestconfig.get_terminal_writer().line(f"the cause was shown after {seconds:.1f} s")
    (cause,) = page.find(".causes li")
    assert "orders" in cause.text
    assert all(view in cause.text for view in ("orders/orders", "revenue/revenue", "forecast/forecast"))
    assert "stock" not in cause.text
    page.sees(lambda: page.find(".causes li.bad"))  # first it is late, then silent
    (cause,) = page.find(".causes li.bad")
    assert all(text in cause.text for text in ("since ", "owner team shop", "doctor --source inv"))
    page.sees(lambda: page.find("rect.bad"))
    (runbook,) = page.find(".causes a[href^=runbooks]")
    page.browser.get(runbook.get_attribute("href"))
    assert "start it again" in page.text
    page.open()
    picture.stalled.clear()
    page.sees(lambda: "Nothing is late." in page.text)


@pytest.mark.full
def test_every_page_is_shown_and_every_link_leads_somewhere(open_page: Callable[..., Page]) -> None:
    picture = chain()
    picture.ended["stock"] = RunEnd(ended_ms=now_ms(), failure="QueryFailedError: no disk")
    page = open_page(picture)
    waiting, seen = ["#/", "#/sources", "#/pipelines", "#/views", "#/reads"], set()
    while waiting:
        place = waiting.pop()
        if place in seen:
            continue
        seen.add(place)
        page.open(place)
        assert "There is no" not in page.text, place
        links = page.browser.execute_script(
            "return [...document.querySelectorAll('main a')].map(a => a.getAttribute('href'))"
        )
        waiting += [each for each in links if each.startswith("#")]
    assert len(seen) == 5 + 3 + 4
    page.open("#/pipelines/stock")
    assert "QueryFailedError: no disk" in page.text
    assert "team stock" in page.text
    page.open("#/pipelines/orders")
    page.sees(lambda: "change events and" in page.text)
    assert len(page.find(".bars li")) == 4
    page.open("#/sources/inv")
    page.sees(lambda: "END counts 3" in page.text)
    page.open("#/pipelines/none")
    assert "There is no pipeline with this name" in page.text


def test_what_is_read_together_and_for_how_long_is_shown(open_page: Callable[..., Page]) -> None:
    picture = chain()
    lease = Lease(
        id="4f0c",
        source="inv",
        timeline=1,
        commit_lsn=0x1_0000_0600,
        pipelines=("orders", "stock"),
        holder=HOSTILE,
        taken_ms=now_ms(),
        expires_ms=now_ms() + 3_600_000,
    )
    refusal = "its tables have no history"
    picture.lease_records = [
        lease,
        Hold(lease="4f0c", pipeline="stock", until_ms=lease.expires_ms, refusal=refusal),
    ]
    page = open_page(picture, "#/reads")
    common = "All pipelines can be read at 0/600 on timeline 1. The newest barrier is 0/600."
    page.sees(lambda: common in page.text)
    page.sees(lambda: page.find(".badge.refused"))
    (row,) = page.find("section[data-snapshot] ~ div.wide tbody tr")
    for text in ("4f0c", "1/600", "orders has not answered", f"stock refuses: {refusal}", HOSTILE):
        assert text in row.text


def test_how_late_a_pipeline_was_is_drawn_and_said_in_words(open_page: Callable[..., Page]) -> None:
    page = open_page(chain(), "#/pipelines/orders")
    page.sees(lambda: page.find(".course polyline"))
    (drawn,) = page.find(".course svg")
    assert "orders: up to date now, at most 7.0 s at " in drawn.get_attribute("aria-label")
    assert len(page.find(".course polyline")[0].get_attribute("points").split()) == 3
    assert [each.text for each in page.find(".course text")][:3] == ["0", "3.5 s", "7.0 s"]
    page.open("#/pipelines/revenue")
    page.sees(lambda: page.find(".course polyline"))


@pytest.mark.full
def test_revisions_of_a_pipeline_are_shown_with_who_reads_them(open_page: Callable[..., Page]) -> None:
    first = registration("shop", "inv", base_name="shop")
    second = registration("shop.v2", "inv", base_name="shop", revision=2)
    page = open_page(LivePicture(first, second), "#/pipelines/shop.v2")
    page.sees(lambda: page.find("section[aria-label=Revisions] tbody tr"))
    old, new = page.find("section[aria-label=Revisions] tbody tr")
    assert "topics" in old.text
    assert "no readers (slackwater revise switch)" in new.text
    page.open("#/pipelines/shop")
    page.sees(lambda: page.find("section[aria-label=Revisions]"))


@pytest.mark.full
def test_names_and_errors_are_text_whatever_they_hold(open_page: Callable[..., Page]) -> None:
    picture = LivePicture(registration(HOSTILE, HOSTILE, owner=HOSTILE, host=HOSTILE))
    picture.ended[HOSTILE] = RunEnd(ended_ms=now_ms(), failure=HOSTILE)
    page = open_page(picture)
    for place in ("#/", "#/sources", "#/pipelines", "#/views"):
        page.open(place)
        assert "<img" in page.text
        assert page.find("main img") == []
    page.open("#/pipelines/" + HOSTILE.replace("/", "%2F"))
    assert page.find("main img") == []
    assert page.browser.title != "owned"


def test_search_finds_by_name_owner_and_table_without_a_mouse(open_page: Callable[..., Page]) -> None:
    page = open_page(chain())
    page.press("/")
    page.press("finance")
    page.sees(lambda: "Results for “finance”" in page.text)
    assert [each.text for each in page.find("main tbody th")] == ["forecast"]
    page.press(Keys.ENTER)
    assert page.focused == "forecast"
    page.press(Keys.ENTER)
    page.sees(lambda: page.browser.current_url.endswith("#/pipelines/forecast"))
    page.press("/")
    page.press("public.orders")
    page.sees(lambda: len(page.find("main tbody th")) >= 7)
    page.press(Keys.ESCAPE)
    page.sees(lambda: "Where the newest batch" in page.text)


def test_everything_is_reached_with_the_tab_key_and_the_focus_stays_while_the_page_is_updated(
    open_page: Callable[..., Page],
) -> None:
    picture = chain()
    page = open_page(picture, "#/pipelines")
    reached = []
    for _ in range(30):
        page.press(Keys.TAB)
        reached.append(page.focused)
        if page.focused == "revenue":
            break
    assert {"Skip to the content", "Overview", "Sources", "Views", "search", "orders"} <= {
        each.strip() for each in reached
    }
    node = page.browser.switch_to.active_element
    before = page.text
    page.sees(lambda: page.text != before)
    assert page.browser.switch_to.active_element == node, "the element itself has stayed"
    picture.registrations.insert(0, registration("newcomer", "inv"))
    page.sees(lambda: "newcomer" in page.text)
    assert page.browser.switch_to.active_element == node


def test_what_was_seen_last_stays_when_nobody_answers_and_is_said_to_be_old(
    open_page: Callable[..., Page],
) -> None:
    picture = chain()
    page = open_page(picture)
    page.sees(lambda: page.find(".graph a"))
    picture.is_away = True
    page.sees(lambda: "no answer since" in page.text)
    assert page.find("body.stale")
    assert len(page.find(".graph a")) == 7
    picture.is_away = False
    page.sees(lambda: "as of" in page.text)
    assert page.find("body.stale") == []


def test_a_token_is_asked_for_and_stays_in_the_tab(open_page: Callable[..., Page], tmp_path: Path) -> None:
    token, entry = new_token("me", Role.VIEWER)
    path = tmp_path / "tokens.toml"
    path.write_text(entry)
    page = open_page(chain(), tokens=path)
    page.sees(lambda: "A token is required" in page.text)
    for text in ("wrong", token):
        page.sees(lambda: page.find("#token"))
        page.find("#token")[0].clear()
        page.find("#token")[0].send_keys(text, Keys.ENTER)
        page.sees(lambda: page.find("#token") or page.find(".graph a"))
    page.sees(lambda: page.find(".graph a"))
    page.browser.refresh()
    page.sees(lambda: page.find(".graph a"))


@pytest.mark.full
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_stand_out_from_their_ground_in_both_schemes(
    open_page: Callable[..., Page], scheme: str
) -> None:
    picture = chain()
    picture.stall("orders")
    picture.ended["stock"] = RunEnd(ended_ms=now_ms(), failure="why")
    page = open_page(picture)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    try:
        for place in ("#/", "#/pipelines", "#/pipelines/stock"):
            page.open(place)
            weak = page.browser.execute_script(CONTRAST)
            assert weak == [], place
    finally:
        page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


CONTRAST = """
const channel = (c) => {
  c /= 255;
  return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
};
const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
const ground = (node) => {
  for (; node; node = node.parentElement) {
    const colour = rgb(getComputedStyle(node).backgroundColor);
    if (colour.length < 4 || colour[3] > 0) return colour;
  }
  return [255, 255, 255];
};
const ratio = (node) => {
  const [a, b] = [light(rgb(getComputedStyle(node).color)), light(ground(node))].sort((x, y) => y - x);
  return (a + 0.05) / (b + 0.05);
};
const hasText = (node) => [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
return [...document.querySelectorAll("body *")]
  .filter((node) => hasText(node) && node.offsetParent && !node.closest("svg") && ratio(node) < 4.5)
  .map((node) => `${node.tagName} ${ratio(node)} ${node.textContent}`);
"""
"""Texts of which the contrast is below what WCAG 2.2 (1.4.3, level AA) asks for."""


def test_two_hundred_pipelines_are_listed_and_searched(open_page: Callable[..., Page]) -> None:
    many = [registration(f"p{n:03}", f"s{n % 10}", f"o{n}" if n % 20 == 0 else "") for n in range(200)]
    page = open_page(LivePicture(*many), "#/pipelines")
    assert len(page.find("main tbody tr")) == 200
    page.press("/")
    page.press("p117")
    page.sees(lambda: [each.text for each in page.find("main tbody th")] == ["p117", "p117/p117"])
    page.press(Keys.ESCAPE)
    page.open("#/")
    page.sees(lambda: len(page.find("details.part")) >= 10)
    assert page.find("details[open]") == [], "who has many opens what is to be seen"


def test_sources_show_their_connector_and_their_sidecar(open_page: Callable[..., Page]) -> None:
    page = open_page(troubled(), "#/sources")
    (row,) = [each for each in page.find("main tbody tr") if each.text.startswith("inv")]
    assert [each.text for each in row.find_elements(By.CSS_SELECTOR, ".badge")] == ["paused", "running"]
    assert "bad" in row.find_elements(By.CSS_SELECTOR, ".badge")[0].get_attribute("class")
    page.open("#/")
    page.sees(lambda: "connector inv is paused" in page.text)
    assert "orders/orders" in page.find("section[aria-labelledby=delays]")[0].text


def test_nothing_is_cut_on_a_narrow_screen(open_page: Callable[..., Page]) -> None:
    picture = chain()
    picture.stall("orders")
    page = open_page(picture)
    narrow = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    page.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", narrow)
    try:
        for place in ("#/", "#/sources", "#/pipelines", "#/pipelines/orders", "#/views", "#/reads"):
            page.open(place)
            page.sees(lambda: page.find("main h1"))
            assert page.browser.execute_script(CUT) == [], place
    finally:
        page.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


CUT = """
return [...document.querySelectorAll("body *")]
  .filter((node) => !node.closest("svg, .graph, .skip"))
  .filter((node) => node.getBoundingClientRect().right > innerWidth + 1)
  .map((node) => `${node.tagName} ${node.textContent}`);
"""
"""Elements that reach beyond the window; the graph scrolls by itself."""
