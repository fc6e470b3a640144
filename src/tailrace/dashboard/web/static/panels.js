// The tables below the charts: shards, watchers, Iceberg tables, drift, gaps, dead letters and the sources.

import { byId, fill, h } from "./dom.js";
import { badge } from "./flow.js";
import { ago, bytes, count, duration, moment, rate } from "./format.js";

const several = (number, what) => `${count(number)} ${what}${number === 1 ? "" : "s"}`;

/** What an empty panel says: nothing is known of a source that does not answer. */
export function emptiness(state, name, empty) {
  const silent = state.sources.find((one) => `${one.name} `.startsWith(`${name} `) && one.condition.colour !== "green");
  return silent ? `Not known: ${silent.condition.reason}.` : empty;
}

/** A table of rows: columns are [title, cell(row), isNumber]. */
function table(element, rows, columns, empty, keyOf) {
  if (!rows.length) {
    fill(element, h("p", { class: "empty" }, empty));
    return;
  }
  const head = columns.map(([title, , isNumber]) => h("th", { scope: "col", class: isNumber ? "number" : null }, title));
  const body = rows.map((row) => h("tr", { "data-key": keyOf(row) },
    columns.map(([, cell, isNumber]) => h("td", { class: isNumber ? "number" : null }, cell(row)))));
  fill(element, h("table", {}, h("thead", {}, h("tr", {}, head)), h("tbody", {}, body)));
}

export function drawPanels(state) {
  drawShards(state);
  drawWatchers(state.gateways);
  drawTables(state);
  drawDrift(state);
  drawGaps(state);
  drawLetters(state);
  drawSources(state);
}

function drawShards(state) {
  const marks = (shard) => (shard.marks.length
    ? h("ul", { class: "plain" }, shard.marks.map((mark) => h("li", { "data-key": mark.stream },
      h("b", {}, mark.stream), ` ${moment(mark.at)}, ${duration(mark.age_seconds)} behind`)))
    : h("span", { class: "muted" }, "no stream"));
  const merge = (shard) => {
    if (shard.stalled_seconds > 0) return badge("red", `silent for ${duration(shard.stalled_seconds)}`);
    if (shard.blocks_merge) return badge("amber", shard.blocking_seconds > 0 ? `others wait ${duration(shard.blocking_seconds)}` : "blocks the merge");
    return h("span", { class: "muted" }, "no shard waits");
  };
  table(byId("shards-list"), state.shards, [
    ["Shard", (shard) => h("b", {}, shard.name)], ["Oplog ends", (shard) => moment(shard.last)],
    ["High-water marks", marks], ["Merge", merge],
  ], emptiness(state, "mongodb", "No shard has been read."), (shard) => shard.name);
}

function drawWatchers(gateways) {
  const element = byId("watchers-list");
  if (!gateways.length) {
    fill(element, h("p", { class: "empty" }, "No gateway is configured. Name its metrics endpoint in ", h("code", {}, "dashboard.gateways"), "."));
    return;
  }
  fill(element, gateways.map((gateway) => h("div", { class: "gateway", "data-key": gateway.location },
    h("h3", {}, gateway.listener ?? gateway.location, " ", badge(gateway.condition.colour)),
    h("p", { class: "hint" }, gateway.condition.reason),
    gateway.listener === null ? null : h("dl", { class: "facts" }, [
      ["Watchers", count(gateway.watchers)], ["Clients", count(gateway.connections)], ["Events", rate(gateway.events_per_second)],
      ["Bytes", `${bytes(gateway.bytes_per_second)}/s`], ["Dropped", count(gateway.dropped)],
      ["Passed on", count(gateway.passed)],
    ].map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
    gateway.shards.map((shard) => h("p", { class: "hint", "data-key": shard.shard },
      h("b", {}, shard.shard), ` ${several(shard.watchers, "watcher")} on ${several(shard.channels, "stream")} from ${several(shard.cursors, "oplog cursor")}, `,
      `${rate(shard.entries_per_second)} entries, ${bytes(shard.ring_bytes)} held`)),
    gateway.lags.length ? h("ul", { class: "plain" }, gateway.lags.slice(0, 8).map((lag) => h("li", { "data-key": `${lag.shard}${lag.namespace}` },
      h("b", {}, lag.namespace || "cluster"), ` on ${lag.shard}: slowest ${duration(lag.seconds)} behind`))) : null)));
}

function drawTables(state) {
  const snapshots = (one) => h("details", {}, h("summary", {}, several(one.snapshot_count, "snapshot")),
    h("ol", { class: "snapshots" }, one.snapshots.slice(0, 8).map((snapshot) => h("li", { "data-key": snapshot.id },
      h("time", {}, moment(snapshot.at)), ` ${snapshot.operation} `,
      h("b", {}, `+${count(snapshot.added_rows)}`), snapshot.deleted_rows ? ` −${count(snapshot.deleted_rows)}` : ""))));
  table(byId("tables-list"), state.tables, [
    ["Table", (one) => h("b", {}, one.name)], ["Kind", (one) => one.kind.replace("_", " ")],
    ["Rows", (one) => count(one.rows), true], ["Files", (one) => count(one.files), true], ["Size", (one) => bytes(one.bytes), true],
    ["Newest event", (one) => (one.cluster_time === null ? "–" : ago(one.cluster_time, state.at)), true],
    ["Snapshots", snapshots],
  ], emptiness(state, "iceberg", "The warehouse has no tables yet."), (one) => one.name);
}

function drawDrift(state) {
  const { drift, tables } = state;
  const element = byId("drift-list");
  const none = tables.length ? "Every document fits its table." : "There are no tables yet.";
  if (!drift.length) fill(element, h("p", { class: "empty" }, emptiness(state, "iceberg", none)));
  else {
    fill(element, h("ul", { class: "plain notes" }, drift.map((one, index) => h("li", { "data-key": `${index}${one.change}` },
      h("b", {}, one.table), " ", one.change, one.at ? h("small", {}, ` ${moment(one.at)}`) : null))));
  }
}

function drawGaps(state) {
  const colours = { open: "red", recovering: "amber", closed: "green", accepted: "amber" };
  table(byId("gaps-list"), state.gaps, [
    ["Stream", (gap) => h("b", {}, `${gap.stream} #${gap.number}`)], ["State", (gap) => badge(colours[gap.state] ?? "grey", gap.state)],
    ["Why", (gap) => gap.reason], ["From", (gap) => moment(gap.last_good)], ["To", (gap) => moment(gap.first_known)],
    ["Read again", (gap) => count(gap.records), true], ["Deletes", (gap) => count(gap.deletes), true],
  ], emptiness(state, "positions", "No history was ever lost."), (gap) => `${gap.stream}${gap.number}`);
}

const PARTS = { capture: "capture", features: "features job", warehouse: "tables job" };

function drawLetters(state) {
  const parts = state.dead_letters;
  const newest = parts.flatMap((part) => part.newest.map((letter) => ({ ...letter, part: part.part })))
    .sort((one, other) => (other.at ?? 0) - (one.at ?? 0)).slice(0, 20).map((letter, place) => ({ ...letter, place }));
  const rows = h("div", { "data-key": "rows" });
  table(rows, newest, [
    ["When", (one) => moment(one.at)], ["Put aside by", (one) => PARTS[one.part]], ["Cause", (one) => h("code", {}, one.cause)],
    ["Namespace", (one) => one.namespace || "–"], ["Operation", (one) => one.operation || "–"], ["What happened", (one) => one.message],
  ], emptiness(state, "dead letters", "No dead letters."), (one) => one.location); // two letters may be alike in everything
  fill(byId("letters-list"), rows, h("ul", { class: "plain notes", "data-key": "places" }, parts.map((part) => h("li", { "data-key": part.part },
    h("b", {}, PARTS[part.part]), ` ${part.total === null ? "not polled" : count(part.total)}, in ${part.location}`))));
}

function drawSources(state) {
  table(byId("looks-list"), state.sources, [
    ["Source", (source) => h("b", {}, source.name)], ["State", (source) => badge(source.condition.colour, source.condition.colour === "green" ? "answers" : undefined)],
    ["Detail", (source) => (source.condition.colour === "green" ? "" : source.condition.reason)],
    ["Polled", (source) => ago(source.at, state.at), true], ["Took", (source) => duration(source.took_seconds), true],
  ], "Nothing is configured.", (source) => source.name);
}
