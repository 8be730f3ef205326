// Polls the control plane, and keeps its newest answers.

const EVERY_MS = 1000;
const LEAST_SECONDS = 0.9;
const TOKEN = "slackwater-token";

export const state = {
  topology: null,
  delays: null,
  /** The doctor's reports by source; only of sources that are shown. */
  reports: new Map(),
  /** What all pipelines of a source show together, and leases; only while that page is shown. */
  snapshots: null,
  leases: null,
  /** What pipelines compute twice; only while it is shown. */
  sharing: null,
  /** How late the views of the shown pipeline were. */
  history: null,
  /** The revisions of the shown pipeline, if it has several. */
  revisions: null,
  /** Change events and documents a second by pipeline. */
  rates: new Map(),
  /** Since when nobody answers; null: somebody does. */
  silentSince: null,
  problem: "",
  needsToken: false,
};

/** The pipelines as they were when their rates were last computed. */
const counted = new Map();
let wake = null;
let watched = null;
let asked = [];

/** Says of which source the doctor is asked; null: of none. */
export function watchSource(name) {
  if (watched !== name) {
    watched = name;
    wake?.();
  }
}

/** Says what is asked for besides: names in the state, each with its route. */
export function watch(wanted) {
  const isNew = wanted.some(([, route]) => !asked.some(([, other]) => other === route));
  asked = wanted;
  if (isNew) wake?.();
}

export function useToken(token) {
  sessionStorage.setItem(TOKEN, token);
  state.needsToken = false;
  wake?.();
}

async function ask(path) {
  const token = sessionStorage.getItem(TOKEN);
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const answer = await fetch(`api/v1${path}`, { headers, cache: "no-cache", signal: AbortSignal.timeout(15_000) });
  if (answer.status === 401) {
    state.needsToken = true;
    throw new Error("a token is required");
  }
  if (answer.status === 404) return null;
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.error ?? `status ${answer.status}`);
  return body;
}

async function look() {
  const [topology, delays] = await Promise.all([ask("/topology"), ask("/delays")]);
  countRates(topology);
  state.topology = topology;
  state.delays = delays;
  for (const [name, route] of asked) state[name] = await ask(route);
  if (watched !== null) state.reports.set(watched, await ask(`/sources/${encodeURIComponent(watched)}`));
}

function countRates(topology) {
  for (const pipeline of topology.pipelines) {
    const before = counted.get(pipeline.name);
    if (before?.run === pipeline.run) {
      const seconds = (pipeline.heard_ms - before.heard_ms) / 1000;
      if (seconds < LEAST_SECONDS) continue;
      state.rates.set(pipeline.name, {
        events: (pipeline.run_events - before.run_events) / seconds,
        documents: (pipeline.run_documents - before.run_documents) / seconds,
      });
    }
    counted.set(pipeline.name, pipeline);
  }
}

/** Asks for ever, but not while nobody looks; calls back whenever there is something new to be seen. */
export async function follow(changed) {
  for (;;) {
    if (document.visibilityState === "visible" && !state.needsToken) {
      try {
        await look();
        state.silentSince = null;
        state.problem = "";
      } catch (error) {
        state.silentSince ??= Date.now();
        state.problem = error.message;
      }
      changed();
    }
    await new Promise((done) => {
      wake = done;
      setTimeout(done, EVERY_MS);
    });
  }
}

document.addEventListener("visibilitychange", () => wake?.());
