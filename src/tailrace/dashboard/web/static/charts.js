// Which charts there are, and the history behind them: fetched once for a span, then kept up with every state.

import { Chart } from "./chart.js";
import { ask } from "./connection.js";
import { byId, fill, h } from "./dom.js";
import { compact, duration } from "./format.js";

const OPERATIONS = { insert: "c3", update: "c1", replace: "c5", delete: "c4", read: "c8" };
export const colourOf = (operation) => OPERATIONS[operation] ?? "c7";

const HOPS = {
  "mongodb-kafka": "MongoDB → Kafka", "kafka-redis": "Kafka → Redis", "kafka-iceberg": "Kafka → Iceberg",
  "mongodb-redis": "MongoDB → Redis", "mongodb-iceberg": "MongoDB → Iceberg",
};
const STEPS = { "5m": 1, "1h": 10 };
const LENGTHS = { "5m": 300, "1h": 360 };

const named = (data, prefix) => Object.keys(data.series)
  .filter((name) => name.startsWith(prefix) && data.series[name].some((value) => value !== null));
const lines = (prefix, title = (rest) => rest) => (data) => named(data, prefix).sort()
  .map((name, index) => ({ name, title: title(name.slice(prefix.length)), colour: `c${(index % 8) + 1}` }));

function operations(data) {
  return named(data, "rate/op/").sort().map((name) => {
    const operation = name.slice("rate/op/".length);
    return { name, title: operation, colour: colourOf(operation) };
  });
}

// The whole way, where it is measured: to Redis, else to Iceberg, else as far as Kafka.
function endToEnd(data) {
  const hop = ["mongodb-redis", "mongodb-iceberg", "mongodb-kafka"].find((each) => named(data, `latency/${each}/`).length);
  if (!hop) return [];
  return ["p50", "p95", "p99"].map((part, index) => ({
    name: `latency/${hop}/${part}`, title: `${HOPS[hop]} ${part}`, colour: ["c1", "c5", "c4"][index],
  }));
}

function byHop(data) {
  const found = Object.keys(HOPS).filter((hop) => named(data, `latency/${hop}/p95`).length)
    .map((hop) => ({ name: `latency/${hop}/p95`, title: HOPS[hop] }));
  if (named(data, "commit/p95").length) found.unshift({ name: "commit/p95", title: "read → committed" });
  return found.map((one, index) => ({ ...one, colour: `c${index + 1}` }));
}

const DEFINITIONS = [
  { title: "Lag", note: "position behind the oplog", format: duration, series: lines("lag/", (rest) => rest.replace("/", " on ")) },
  { title: "Events by operation", note: "per second", format: compact, series: operations },
  { title: "Events by namespace", note: "per second", format: compact, series: lines("rate/ns/") },
  {
    title: "Batch size", note: "events in a committed batch, on average", format: compact,
    series: (data) => named(data, "batch/events").map((name) => ({ name, title: "events a batch", colour: "c1" })),
  },
  { title: "Latency, end to end", note: "median, 95 % and 99 %", format: duration, series: endToEnd },
  { title: "Latency by hop", note: "95 % are faster", format: duration, series: byHop },
];

export class Charts {
  constructor() {
    this.span = "5m";
    this.data = { span: "5m", at: [], series: {} };
    this.charts = DEFINITIONS.map((definition) => new Chart(byId("chart-grid"), definition));
    for (const button of document.querySelectorAll("[data-span]")) {
      button.addEventListener("click", () => this.choose(button.dataset.span));
    }
  }

  async choose(span) {
    this.span = span;
    byId("span-words").textContent = span === "1h" ? "hour" : "5 minutes";
    for (const button of document.querySelectorAll("[data-span]")) {
      button.setAttribute("aria-pressed", String(button.dataset.span === span));
    }
    await this.load();
  }

  async load() {
    const found = await ask(`/api/history?span=${this.span}`);
    this.data = { span: this.span, at: found.at, series: found.series };
    this.draw();
  }

  /** Take the newest points; in the longer span those of one step take each other's place. */
  add(state) {
    const step = STEPS[this.span];
    const at = Math.floor(state.at / step) * step;
    const { data } = this;
    const isNew = !data.at.length || at > data.at[data.at.length - 1];
    if (isNew) data.at.push(at);
    const last = data.at.length - 1;
    for (const name of new Set([...Object.keys(data.series), ...Object.keys(state.points)])) {
      const values = (data.series[name] ??= Array(last).fill(null));
      while (values.length < last) values.push(null);
      values[last] = state.points[name] ?? (isNew ? null : values[last] ?? null);
    }
    while (data.at.length > LENGTHS[this.span]) {
      data.at.shift();
      for (const values of Object.values(data.series)) values.shift();
    }
    this.draw();
    drawLatency(state.latency);
  }

  draw() {
    for (const chart of this.charts) chart.draw(this.data);
  }
}

function drawLatency(latency) {
  const element = byId("latency-table");
  if (!latency.length) {
    fill(element, h("p", { class: "empty" }, "No event has been measured in the last five minutes."));
    return;
  }
  const row = (one) => h("tr", { "data-key": one.hop, class: one.is_end_to_end ? "strong" : null },
    h("th", { scope: "row" }, one.title), [one.p50, one.p95, one.p99].map((value) => h("td", { class: "number" }, duration(value))),
    h("td", { class: "number" }, one.count.toLocaleString("en")),
    h("td", { class: "muted" }, one.resolution_seconds >= 1 ? "to the second" : "to the millisecond"));
  fill(element, h("table", {}, h("thead", {}, h("tr", {}, ["Hop", "Median", "95 %", "99 %", "Samples", "Precision"]
    .map((text, index) => h("th", { scope: "col", class: index > 0 && index < 5 ? "number" : null }, text)))),
  h("tbody", {}, latency.map(row))));
}

