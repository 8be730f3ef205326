// The page: chooses what to show, and builds it.

import { h, show } from "./dom.js";
import { ago, clock, count, delay, duration, moment, plural, rate } from "./format.js";
import { behind, draw, parts, severity } from "./graph.js";
import { follow, state, useToken, watch, watchSource } from "./live.js";

const main = document.getElementById("main");
const search = document.getElementById("search");
const MANY = 40;

const PAGES = [["", "Overview"], ["sources", "Sources"], ["pipelines", "Pipelines"], ["views", "Views"], ["reads", "Reads"]];

function wanted(page, name) {
  if (page === "reads") return [["snapshots", "/snapshots"], ["leases", "/leases"]];
  if (page !== "pipelines") return [];
  if (!name) return [["sharing", "/sharing"]];
  const history = ["history", `/delays/history/${encodeURIComponent(name)}`];
  const base = baseOf(name);
  return base === null ? [history] : [history, ["revisions", `/revisions/${encodeURIComponent(base)}`]];
}

/** The name without a revision, of a pipeline that has several; null for others. */
function baseOf(name) {
  const all = state.topology?.pipelines ?? [];
  const found = all.find((each) => each.name === name);
  return found !== undefined && all.filter((each) => each.base_name === found.base_name).length > 1 ? found.base_name : null;
}

const path = () => location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
const to = (kind, name) => `#/${kind}/${encodeURIComponent(name)}`;
const link = (kind, name) => h("a", { href: to(kind, name) }, name);

function render() {
  const [page, ...rest] = path();
  const name = rest.join("/");
  watch(wanted(page, name));
  watchSource(page === "sources" && name ? name : null);
  show(document.getElementById("pages"), PAGES.map(([each, title]) =>
    h("a", { href: `#/${each}`, "aria-current": each === page ? "page" : false }, title)));
  document.title = [name || PAGES.find(([each]) => each === page)?.[1], "Slackwater"].filter(Boolean).join(" · ");
  showStatus();
  if (state.needsToken) show(main, askForToken());
  else if (state.topology === null) show(main, h("p", { class: "quiet" }, state.problem ? `The control plane does not answer: ${state.problem}` : "Loading …"));
  else if (search.value.trim()) show(main, results(search.value.trim().toLowerCase()));
  else show(main, content(page, name));
}

function showStatus() {
  const status = document.getElementById("status");
  document.body.classList.toggle("stale", state.silentSince !== null);
  if (state.silentSince !== null) status.textContent = `no answer since ${clock(state.silentSince)}: ${state.problem}`;
  else if (state.topology !== null) status.textContent = `as of ${clock(state.topology.made_ms)}`;
}

function content(page, name) {
  if (page === "sources") return name ? source(name) : sources(state.topology.sources);
  if (page === "pipelines") return name ? pipeline(name) : pipelines(state.topology.pipelines);
  if (page === "views") return views(state.delays.views);
  if (page === "reads") return reads();
  if (page === "") return overview();
  return missing("page", page);
}

const missing = (kind, name) => h("section", null, h("h1", null, name), h("p", null, `There is no ${kind} with this name. It may have been removed, or may not have registered yet.`));

// --- overview

function overview() {
  const { sources: all, pipelines: known } = state.topology;
  const counts = Object.entries(Object.groupBy(known, (each) => each.state)).map(([name, found]) => `${found.length} ${name}`);
  const drawn = parts(state.topology);
  return [
    h("section", { key: "late", "aria-labelledby": "late" },
      h("h1", { id: "late" }, "What is late, and why?"),
      causes(state.delays.causes)),
    h("p", { key: "counts", class: "counts" }, `${plural(all.length, "source")}, ${plural(known.length, "pipeline")}${counts.length ? ` (${counts.join(", ")})` : ""}, ${plural(state.delays.views.length, "view")}`),
    h("div", { key: "halves", class: "halves" }, h("section", { key: "graphs", "aria-label": "Topology" },
      h("h2", null, "How is everything connected?"),
      drawn.length === 0 && h("p", { class: "quiet" }, "No pipeline has registered yet. A pipeline registers when slackwater run starts it."),
      drawn.map((each) => h("details", { key: each.root.name, class: "part", open: known.length <= MANY },
        h("summary", null, `source ${each.root.name}`, h("span", { class: "quiet" }, ` ${plural(each.nodes.filter((node) => node.kind === "pipeline").length, "pipeline")}`)),
        draw(each, state.delays)))),
    state.delays.views.length > 0 && h("section", { key: "views", "aria-labelledby": "delays" },
      h("h2", { id: "delays" }, "How late is each view?"),
      table(some(state.delays.views.map((each) => each.source).filter((each, index, all) => all.indexOf(each) === index), 3), ["view", "delay", "source"],
        state.delays.views.slice(0, MANY).map((each) => row(`${each.pipeline} ${each.view}`, viewLink(each), delay(each.delay_ms), link("sources", each.source)))))),
  ];
}

const viewLink = (each) => h("a", { href: to("pipelines", each.pipeline) }, `${each.pipeline}/${each.view}`);

function causes(found) {
  if (found.length === 0) return h("p", { class: "well", "data-late": "0" }, "Nothing is late.");
  const shown = found.slice(0, 5);
  return h("ol", { class: "causes", "data-late": found.length },
    shown.map(cause),
    found.length > shown.length && h("li", { key: "more", class: "quiet" }, `and ${found.length - shown.length} more`));
}

function cause(each) {
  const owned = state.topology.pipelines.find((other) => each.kind === "pipeline" && other.name === each.name);
  const of = each.kind === "pipeline" ? owned?.source : each.name;
  const known = [each.since_ms !== null && `since ${clock(each.since_ms)}`, each.delay_ms >= 2000 && `${duration(each.delay_ms)} late`, owned?.owner && `owner ${owned.owner}`];
  return h("li", { key: `${each.kind} ${each.name}`, class: severity(each) },
    h("a", { href: to(each.kind === "pipeline" ? "pipelines" : "sources", each.name) }, each.evidence),
    h("p", { class: "quiet" }, known.filter(Boolean).join(" · ")),
    each.views.length > 0 && h("p", { class: "quiet" }, `late because of it: ${some(each.views, 4)}`),
    h("p", { class: "quiet" }, "what to do: ", withRunbook(each.advice)),
    of !== undefined && command(`slackwater doctor --source ${of}`));
}

/** An advice in which a section of the runbooks is a link. */
function withRunbook(text) {
  const found = /docs\/runbooks\.md#([a-z-]+)/.exec(text);
  return found === null ? text : [text.slice(0, found.index), h("a", { href: `runbooks/${found[1]}.md` }, found[0]), text.slice(found.index + found[0].length)];
}

function command(text) {
  const copy = (event) => { navigator.clipboard?.writeText(text).then(() => { event.target.textContent = "copied"; }); };
  return h("p", { class: "command" }, h("code", null, text), " ", h("button", { type: "button", class: "copy", "aria-label": `Copy ${text}`, onclick: copy }, "copy"));
}

const some = (names, most) => names.slice(0, most).join(", ") + (names.length > most ? ` and ${names.length - most} more` : "");

// --- tables

function table(caption, heads, rows) {
  if (rows.length === 0) return h("p", { class: "quiet" }, "None.");
  return h("div", { class: "wide" }, h("table", null,
    h("caption", null, caption),
    h("thead", null, h("tr", null, heads.map((head) => h("th", { scope: "col" }, head)))),
    h("tbody", null, rows.map((each) => labelled(each, heads)))));
}

const row = (key, name, ...cells) => h("tr", { key }, h("th", { scope: "row" }, name), cells.map((cell) => h("td", null, cell)));

/** Gives each cell the heading of its column, which narrow screens show before it instead of columns. */
function labelled(line, heads) {
  line.children.forEach((cell, index) => { cell.attributes["data-label"] = heads[index]; });
  return line;
}

function sources(found) {
  const now = state.topology.made_ms;
  return h("section", { key: "sources" }, h("h1", null, "Sources"), table(plural(found.length, "source"),
    ["source", "connector", "sidecar", "newest commit", "newest cut", "tables", "read by", "written by"],
    found.map((each) => row(each.name, link("sources", each.name), health(each, "connector"), health(each, "sidecar"),
      each.cut ? ago(each.cut.commit_ts_ms, now) : "–", each.cut?.commit_lsn ?? "none",
      count(Object.keys(each.tables).length), plural(each.read_by.length, "pipeline"), some(each.written_by, 3) || "a database"))));
}

/** The state of a source's sidecar, or of its connector, as it is known. */
function health(source, kind) {
  const signs = state.delays.signs.find((each) => each.source === source.name);
  const blamed = state.delays.causes.find((each) => each.name === source.name && (kind === "sidecar" ? each.kind === "sidecar" : ["connector", "connect", "database"].includes(each.kind)));
  const said = kind === "sidecar" ? signs?.status?.state : signs?.status?.connector?.state?.toLowerCase();
  if (blamed) return badge(kind === "sidecar" || !said || said === "running" ? (blamed.kind === "sidecar" ? "silent" : "down") : said, "bad");
  return said ? badge(said) : "not known";
}

const URGENCY = ["failed", "vanished", "running", "left"];

function pipelines(found) {
  const sorted = found.toSorted((a, b) => URGENCY.indexOf(a.state) - URGENCY.indexOf(b.state) || (b.behind_ms ?? -1) - (a.behind_ms ?? -1) || a.name.localeCompare(b.name));
  return h("section", { key: "pipelines" }, h("h1", null, "Pipelines"), table(plural(found.length, "pipeline"),
    ["pipeline", "state", "progress", "newest commit", "batch", "events/s", "documents/s", "owner", "host"],
    sorted.map((each) => row(each.name, link("pipelines", each.name), badge(each.state), behind(each),
      each.batch?.commit_lsn ?? "–", each.batch ? count(each.batch.batch_id) : "–",
      rate(ratesOf(each)?.events ?? null), rate(ratesOf(each)?.documents ?? null),
      each.owner || "–", each.host))),
    twice());
}

function twice() {
  if (!state.sharing?.equal.length) return null;
  return h("section", { key: "twice", "aria-label": "What is computed more than once?" },
    h("h2", null, "What is computed more than once?"),
    table(plural(state.sharing.equal.length, "stage"), ["stage key", "reads", "what it does", "computed in", "sharing would save"],
      state.sharing.equal.map((each) => row(each.copies.map((copy) => `${copy.pipeline} ${copy.stage}`).join(" "),
        each.key.join(", ") || "none", each.tables.join(", ") || "other stages", each.why,
        each.copies.map((copy, index) => [index ? ", " : "", link("pipelines", copy.pipeline), ` stage ${copy.stage}`]),
        each.saved_bytes === null ? "not known" : `${count(each.saved_bytes)} bytes`))));
}

const SILENT_MS = 15_000;
const ratesOf = (each) => (each.state === "running" && state.topology.made_ms - each.heard_ms < SILENT_MS ? state.rates.get(each.name) : undefined);

const badge = (name, severe = "") => h("span", { class: `badge ${name} ${severe}` }, name);

function views(found) {
  return h("section", { key: "views" }, h("h1", null, "Views"), table(`${plural(found.length, "view")}, the longest delay first`,
    ["view", "delay", "parts of the delay", "source"],
    found.map((each) => row(`${each.pipeline} ${each.view}`, viewLink(each),
      delay(each.delay_ms), components(each), link("sources", each.source)))));
}

function reads() {
  if (state.snapshots === null || state.leases === null) return h("p", { class: "quiet" }, "Loading …");
  const now = state.topology.made_ms;
  return h("section", { key: "reads" },
    h("h1", null, "What does a consistent query see?"),
    state.snapshots.length === 0 && h("p", { class: "quiet" }, "No source has a barrier yet. A sidecar sets one per second while rows change."),
    state.snapshots.map((each) => h("section", { key: each.source, "data-snapshot": each.source },
      h("h2", null, "source ", link("sources", each.source)),
      h("p", null, each.snapshot === null
        ? `No known barrier is visible in all of its pipelines. The newest barrier is ${each.newest_barrier}.`
        : `All pipelines can be read at ${each.snapshot} on timeline ${each.timeline}. The newest barrier is ${each.newest_barrier}.`),
      table(plural(each.pipelines.length, "pipeline"), ["pipeline", "state", "processed", "committed", "note"],
        each.pipelines.map((one) => row(one.pipeline, link("pipelines", one.pipeline), badge(one.state),
          one.processed ?? "–", one.committed ?? "–", one.is_waited_for ? "shows an earlier commit, as reads with it do" : ""))))),
    h("h2", { key: "leases" }, "Leases"),
    table(plural(state.leases.length, "lease"), ["lease", "state", "source", "commit", "ends", "pipelines", "holder"],
      state.leases.map(({ lease, state: held, waits_for: waits, refusals }) => row(lease.id, lease.id,
        h("span", { class: `badge ${held}` }, held), link("sources", lease.source), lsn(lease.commit_lsn),
        `in ${duration(Math.max(0, lease.expires_ms - now))}`,
        lease.pipelines.map((name, index) => [index ? ", " : "", link("pipelines", name),
          name in refusals ? ` refuses: ${refusals[name]}` : waits.includes(name) ? " has not answered" : ""]),
        lease.holder || "–"))));
}

const lsn = (number) => `${Math.floor(number / 2 ** 32).toString(16).toUpperCase()}/${(number % 2 ** 32).toString(16).toUpperCase()}`;

const components = (view) => view.components.map((component) => `${component.kind === "sidecar" ? "sidecar of " : ""}${component.name} ${duration(component.delay_ms)}`).join(" + ");

// --- one of them

function facts(pairs) {
  return h("dl", null, pairs.filter(Boolean).map(([name, value]) => [h("dt", { key: `${name} name` }, name), h("dd", { key: `${name} value` }, value)]));
}

function pipeline(name) {
  const found = state.topology.pipelines.find((each) => each.name === name);
  if (found === undefined) return missing("pipeline", name);
  const now = state.topology.made_ms;
  const blamed = state.delays.causes.filter((each) => each.kind === "pipeline" && each.name === name);
  const delays = state.delays.views.filter((each) => each.pipeline === name);
  const own = ratesOf(found);
  return h("section", { key: `pipeline ${name}` },
    h("h1", null, name, " ", badge(found.state)),
    blamed.length > 0 && causes(blamed),
    found.failure && h("pre", { class: "failure" }, found.failure),
    facts([
      ["progress", behind(found)],
      ["newest commit", found.batch ? `${found.batch.commit_lsn} on timeline ${found.batch.timeline}, batch ${count(found.batch.batch_id)}` : "nothing yet"],
      own && ["rates", `${rate(own.events)} change events and ${rate(own.documents)} documents per second`],
      ["this run", `${count(found.run_events)} change events, ${count(found.run_documents)} documents`],
      ["source", link("sources", found.source)],
      ["owner", found.owner || "not set (owner in pipeline.toml)"],
      ["runs on", `${found.host}, process ${found.pid}, version ${found.version}`],
      ["started", `${moment(found.started_ms)}, ${ago(found.started_ms, now)}`],
      ["last report", ago(found.heard_ms, now)],
      ["emits", `${found.emit}, scope ${found.scope}`],
      ["checkpoint", found.checkpoint],
    ]),
    found.batch && Object.keys(found.batch.parts_us).length > 0 && bars(found.batch.parts_us),
    h("h2", null, "Views"),
    table(plural(found.views.length, "view"), ["view", "output", "delay", "parts of the delay", "read by"],
      found.views.map((each) => {
        const own = delays.find((other) => other.view === each.name);
        const readers = state.topology.links.filter((other) => other.pipeline === name && other.view === each.name).map((other) => other.read_by);
        return row(each.name, each.name, `${each.kind} ${each.output}${each.format ? ` (${each.format})` : ""}`,
          delay(own?.delay_ms), own ? components(own) : "–", readers.map((reader, index) => [index ? ", " : "", link("pipelines", reader)]));
      })),
    state.revisions?.some((each) => each.pipeline === name) && revisions(state.revisions),
    state.history?.pipeline === name && course(state.history, delays),
    h("h2", null, "Stages"),
    table(plural(found.stages.length, "stage"), ["stage", "level", "stage key", "reads", "what it does"],
      found.stages.map((each) => row(each.number, String(each.number), each.level, each.key.join(", ") || "none",
        [...each.tables, ...each.stages.map((number) => `stage ${number}`)].join(", "), each.why))));
}

function revisions(found) {
  return h("section", { key: "revisions", "aria-label": "Revisions" },
    h("h2", null, "Revisions"),
    table(plural(found.length, "revision"), ["revision", "state", "newest commit", "behind", "catches up", "read by"],
      found.map((each) => row(each.pipeline, link("pipelines", each.pipeline), badge(each.state), each.shows ?? "nothing yet",
        duration(each.behind_ms), each.caught_up_in_ms === null ? "–" : `in ${duration(each.caught_up_in_ms)}`,
        each.read_by.join(", ") || "no readers (slackwater revise switch)"))));
}

/** How late the views of a pipeline were, up to now: a line for each view with axes, and the same in words. */
function course({ times_ms: past, views: all }, live) {
  const now = state.topology.made_ms;
  const times = [...past.filter((each) => each < now), now];
  const series = Object.entries(all).map(([view, values]) => [view, [...values.slice(0, times.length - 1), live.find((each) => each.view === view)?.delay_ms ?? null]]);
  const shown = series.filter(([, values]) => values.some((value) => value !== null));
  if (times.length < 2 || shown.length === 0) return null;
  const [first, last] = [times[0], times.at(-1)];
  const most = Math.max(2000, ...shown.flatMap(([, values]) => values));
  const x = (time) => 70 + (520 * (time - first)) / (last - first || 1);
  const y = (value) => 96 - (86 * value) / most;
  return h("section", { key: "course", "aria-label": "Delay over time" },
    h("h2", null, `Delay since ${clock(first)}`),
    shown.slice(0, 12).map(([view, values]) => {
      const known = values.flatMap((value, index) => (value === null ? [] : [[index, value]]));
      const worst = known.reduce((one, other) => (other[1] > one[1] ? other : one));
      const words = `${view}: ${delay(known.at(-1)[1])} now, at most ${duration(worst[1])} at ${clock(times[worst[0]])}`;
      return h("figure", { key: view, class: "course" },
        h("svg", { viewBox: "0 0 600 120", role: "img", "aria-label": words },
          [0, most / 2, most].map((value) => [
            h("line", { key: `line ${value}`, class: "axis", x1: 70, x2: 590, y1: y(value), y2: y(value) }),
            h("text", { key: `text ${value}`, x: 64, y: y(value) + 4, "text-anchor": "end" }, value === 0 ? "0" : duration(value))]),
          [first, (first + last) / 2, last].map((time, index) => h("text", { key: `time ${index}`, x: x(time), y: 114, "text-anchor": ["start", "middle", "end"][index] }, clock(time))),
          h("polyline", { points: known.map(([index, value]) => `${x(times[index]).toFixed(1)},${y(value).toFixed(1)}`).join(" ") })),
        h("figcaption", null, words));
    }));
}

function bars(partsUs) {
  const whole = Object.values(partsUs).reduce((sum, each) => sum + each, 0) || 1;
  return [
    h("h2", { key: "bars" }, "Where the newest batch spent its time"),
    h("ul", { class: "bars", key: "list" }, Object.entries(partsUs).map(([name, us]) =>
      h("li", { key: name }, h("span", null, name), h("meter", { min: 0, max: whole, value: us, "aria-label": name }), h("span", { class: "number" }, `${(us / 1000).toFixed(1)} ms`)))),
  ];
}

function source(name) {
  const found = state.topology.sources.find((each) => each.name === name);
  if (found === undefined) return missing("source", name);
  const report = state.reports.get(name);
  return h("section", { key: `source ${name}` },
    h("h1", null, name),
    facts([
      ["newest cut", found.cut ? `${found.cut.commit_lsn} on timeline ${found.cut.timeline}, committed ${ago(found.cut.commit_ts_ms, state.topology.made_ms)}` : "none"],
      ["connector", health(found, "connector")],
      ["sidecar", health(found, "sidecar")],
      ["state", report?.state ?? (report === undefined ? "loading …" : "not known")],
      ["written by", found.written_by.length ? found.written_by.map((each) => [link("pipelines", each), " "]) : "a database"],
      ["read by", found.read_by.length ? found.read_by.map((each) => [link("pipelines", each), " "]) : "no pipeline"],
    ]),
    h("h2", null, "Problems"),
    report === undefined ? h("p", { class: "quiet" }, "slackwater doctor is examining the source …") : findings(report),
    report?.open_transactions.length > 0 && [
      h("h2", { key: "open" }, "Open transactions"),
      table(plural(report.open_transactions.length, "transaction"), ["xid", "commit", "waiting since", "received / expected"],
        report.open_transactions.map((each) => row(each.xid, String(each.xid), each.commit_lsn ?? "END not read", ago(each.since_ms, state.topology.made_ms), counts(each)))),
    ],
    h("h2", null, "Tables"),
    table(plural(Object.keys(found.tables).length, "table"), ["table", "topic"], Object.entries(found.tables).map(([each, topic]) => row(each, each, topic))));
}

const counts = ({ received, expected }) => [...new Set([...Object.keys(received), ...Object.keys(expected)])].sort()
  .map((each) => `${each} ${received[each] ?? 0} / ${expected[each] ?? "?"}`).join(", ");

function findings(report) {
  if (report === null || report.findings.length === 0) return h("p", { class: "well" }, "None. The source is healthy.");
  return h("ol", { class: "causes" }, report.findings.map((each, index) => h("li", { key: index },
    h("strong", null, each.cause.replaceAll("_", " ")), " ", each.what,
    each.evidence.map((text) => h("p", null, `because ${text}`)),
    each.advice.map((text) => h("p", { class: "quiet" }, `what to do: ${text}`)))));
}

// --- search, token, keys

function results(words) {
  const has = (...texts) => texts.some((text) => text.toLowerCase().includes(words));
  const foundSources = state.topology.sources.filter((each) => has(each.name, ...Object.keys(each.tables), ...Object.values(each.tables)));
  const foundPipelines = state.topology.pipelines.filter((each) => has(each.name, each.owner, each.host, ...Object.keys(each.tables)));
  const foundViews = state.delays.views.filter((each) => has(each.view)).map((each) => ({ ...each, output: state.topology.pipelines.find((other) => other.name === each.pipeline)?.views.find((view) => view.name === each.view)?.output ?? "" }));
  return h("section", { key: "results" },
    h("h1", null, `Results for “${search.value.trim()}”`),
    foundSources.length + foundPipelines.length + foundViews.length === 0 && h("p", null, "No source, pipeline or view contains this text in its name, owner, host or tables."),
    foundSources.length > 0 && table(plural(foundSources.length, "source"), ["source", "newest cut"], foundSources.map((each) => row(each.name, link("sources", each.name), each.cut?.commit_lsn ?? "none"))),
    foundPipelines.length > 0 && table(plural(foundPipelines.length, "pipeline"), ["pipeline", "state", "progress", "owner"], foundPipelines.map((each) => row(each.name, link("pipelines", each.name), badge(each.state), behind(each), each.owner || "–"))),
    foundViews.length > 0 && table(plural(foundViews.length, "view"), ["view", "delay", "output"], foundViews.map((each) => row(`${each.pipeline} ${each.view}`, [h("a", { href: to("pipelines", each.pipeline) }, `${each.pipeline}/${each.view}`)], duration(each.delay_ms), each.output))));
}

function askForToken() {
  return h("form", { key: "token", class: "token", onsubmit: (event) => { event.preventDefault(); useToken(event.target.elements.token.value.trim()); render(); } },
    h("h1", null, "A token is required"),
    h("p", null, "The operator of this control plane can create one with: slackwater token NAME. This page keeps it only in this tab."),
    h("label", { for: "token" }, "Token"), h("input", { id: "token", name: "token", type: "password", autocomplete: "off", required: "" }),
    h("button", { type: "submit" }, "Continue"));
}

search.addEventListener("input", render);
search.addEventListener("keydown", (event) => {
  if (event.key === "Escape") { search.value = ""; search.blur(); render(); }
  if (event.key === "Enter") main.querySelector("a")?.focus();
});
document.addEventListener("keydown", (event) => {
  const isTyping = event.target.closest("input, textarea, select");
  if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey && !event.altKey) { event.preventDefault(); search.focus(); search.select(); }
});
window.addEventListener("hashchange", () => {
  if (location.hash.startsWith("#/")) { search.value = ""; render(); main.focus({ preventScroll: true }); window.scrollTo(0, 0); }
});

render();
follow(render);
