// Draws everything that is derived from one source, from left to right, with a column for each step.

import { h } from "./dom.js";
import { delay } from "./format.js";

const WIDTH = 190;
const HEIGHT = 46;
const GAP = { x: 64, y: 14 };

/** Returns the parts of a topology that begin at each database's source, largest first. */
export function parts(topology) {
  const writers = new Map(topology.sources.map((source) => [source.name, source.written_by]));
  const roots = topology.sources.filter((source) => source.written_by.length === 0);
  return roots.map((root) => part(topology, root, writers)).sort((a, b) => b.nodes.length - a.nodes.length);
}

function part(topology, root, writers) {
  const nodes = [];
  const edges = [];
  const seen = new Set();
  const place = (kind, name, column, value) => {
    const id = `${kind} ${name}`;
    if (!seen.has(id)) {
      seen.add(id);
      nodes.push({ id, kind, name, column, value });
      return true;
    }
    return false;
  };
  const visit = (source, column) => {
    if (!place("source", source.name, column, source)) return;
    for (const name of source.read_by) {
      const pipeline = topology.pipelines.find((each) => each.name === name);
      if (pipeline === undefined) continue;
      edges.push([`source ${source.name}`, `pipeline ${name}`]);
      if (!place("pipeline", name, column + 1, pipeline)) continue;
      for (const other of topology.sources) {
        if (writers.get(other.name).includes(name)) {
          edges.push([`pipeline ${name}`, `source ${other.name}`]);
          visit(other, column + 2);
        }
      }
    }
  };
  visit(root, 0);
  return { root, nodes, edges };
}

/** Draws a part as SVG; nodes are links. */
export function draw({ root, nodes, edges }, delays) {
  const rows = new Map();
  const placed = new Map();
  for (const node of nodes) {
    const row = rows.get(node.column) ?? 0;
    rows.set(node.column, row + 1);
    placed.set(node.id, { x: 8 + node.column * (WIDTH + GAP.x), y: 8 + row * (HEIGHT + GAP.y) });
  }
  const width = 16 + Math.max(...nodes.map((node) => node.column)) * (WIDTH + GAP.x) + WIDTH;
  const height = 16 + Math.max(...rows.values()) * (HEIGHT + GAP.y) - GAP.y;
  const severities = new Map((delays?.causes ?? []).map((cause) => [`${cause.kind === "pipeline" ? "pipeline" : "source"} ${cause.name}`, severity(cause)]));
  return h("div", { class: "graph", key: root.name },
    h("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": `What is derived from source ${root.name}` },
      edges.map(([from, to]) => edge(placed.get(from), placed.get(to), `${from} ${to}`)),
      nodes.map((node) => box(node, placed.get(node.id), severities.get(node.id)))));
}

function edge(from, to, key) {
  const [x1, y1, x2, y2] = [from.x + WIDTH, from.y + HEIGHT / 2, to.x, to.y + HEIGHT / 2];
  const middle = (x1 + x2) / 2;
  return h("path", { key, class: "edge", d: `M${x1} ${y1} C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}` });
}

/** What has stopped is bad, what is slow is late: in the list, in the graph and in badges alike. */
export const severity = (cause) => (cause.since_ms === null ? "late" : "bad");

function box(node, { x, y }, worst) {
  const said = node.kind === "source" ? cutOf(node.value) : `${node.value.state}, ${behind(node.value)}`;
  const bad = node.kind === "pipeline" && ["failed", "vanished"].includes(node.value.state);
  return h("a", { key: node.id, href: `#/${node.kind}s/${encodeURIComponent(node.name)}`, "aria-label": `${node.kind} ${node.name}: ${said}` },
    h("rect", { class: `node ${node.kind}${bad ? " bad" : worst ? ` ${worst}` : ""}`, x, y, width: WIDTH, height: HEIGHT, rx: node.kind === "source" ? 22 : 6 }),
    h("text", { x: x + 14, y: y + 19, class: "name" }, cut(node.name, 24)),
    h("text", { x: x + 14, y: y + 36, class: "said" }, cut(said, 29)));
}

const cutOf = (source) => (source.cut === null ? "no cut" : source.cut.commit_lsn);

export const behind = (pipeline) =>
  pipeline.progress === "behind" && pipeline.behind_ms !== null ? (pipeline.behind_ms < 2000 ? "up to date" : `${delay(pipeline.behind_ms)} behind`) : pipeline.progress;

const cut = (text, length) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);
