// Formats values for people.

const numbers = new Intl.NumberFormat("en");

export const count = (value) => numbers.format(value);

export const plural = (value, word) => `${count(value)} ${word}${value === 1 ? "" : "s"}`;

/** A duration in milliseconds; "not known" for null. */
export function duration(ms) {
  if (ms === null || ms === undefined) return "not known";
  if (ms < 950) return `${Math.round(ms)} ms`;
  if (ms < 120_000) return `${(ms / 1000).toFixed(1)} s`;
  if (ms < 7_200_000) return `${Math.round(ms / 60_000)} min`;
  if (ms < 172_800_000) return `${Math.round(ms / 3_600_000)} h`;
  return `${Math.round(ms / 86_400_000)} days`;
}

/** How late something is: what batches take is nobody's fault, and no news. */
export const delay = (ms) => (ms !== null && ms !== undefined && ms < 2000 ? "up to date" : duration(ms));

export const ago = (ms, now) => `${duration(Math.max(0, now - ms))} ago`;

export const clock = (ms) => new Date(ms).toLocaleTimeString("en-GB");

export const moment = (ms) => `${new Date(ms).toISOString().slice(0, 19).replace("T", " ")} UTC`;

export const rate = (value) => (value === null ? "–" : value < 10 && value > 0 ? value.toFixed(1) : count(Math.round(value)));
