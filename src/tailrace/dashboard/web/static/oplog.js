// The oplog as a bar: its capacity from left (where history is lost) to right (now), and everybody who stands in it.

import { fill, h } from "./dom.js";
import { bytes, clock, duration, moment } from "./format.js";

const BAR = 26;
const ROW = 19;
const STILL = ["stopped", "stalled", "paused"];

export function drawOplog(element, { oplog, streams }) {
  if (!oplog.length) {
    fill(element, h("p", { class: "empty" }, "The oplog cannot be read now: see MongoDB in the flow above."));
    return;
  }
  const still = new Set(streams.filter((stream) => STILL.includes(stream.state)).map((stream) => stream.name));
  fill(element, oplog.map((window) => shard(window, Math.max(280, element.clientWidth), still)), legend());
}

function shard(window, width, still) {
  const fullness = window.is_full ? "full: new entries push out old ones" : "still filling up";
  return h("div", { class: "oplog", "data-key": window.shard },
    h("h3", {}, window.shard, h("small", {},
      `${duration(window.window_seconds)} of history in ${bytes(window.used_bytes)} of ${bytes(window.limit_bytes)}, ${fullness}`)),
    bar(window, width),
    h("ul", { class: "forecasts" }, window.markers.filter((marker) => marker.kind === "stream")
      .map((marker) => forecast(marker, still.has(marker.name)))));
}

function bar(window, width) {
  const x = (ratio) => Math.max(0, Math.min(1, ratio)) * width;
  const markers = placed(window.markers, x, width);
  const rows = Math.max(1, ...markers.map((marker) => marker.row + 1));
  const top = rows * ROW + 6;
  const free = x(window.free_ratio);
  return h("svg", {
    width, height: top + BAR + 20, viewBox: `0 0 ${width} ${top + BAR + 20}`, role: "img",
    "aria-label": `Oplog of ${window.shard}: ${window.markers.map((m) => `${m.name} is ${duration(m.age_seconds)} behind`).join(", ")}`,
  },
  h("defs", {}, h("pattern", { id: "free", width: 7, height: 7, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    h("line", { class: "hatch", x1: 0, y1: 0, x2: 0, y2: 7 }))),
  h("rect", { class: "oplog-free", x: 0, y: top, width, height: BAR, rx: 5 }),
  h("rect", { x: 0, y: top, width: free, height: BAR, rx: 5, fill: "url(#free)" }),
  h("rect", { class: "oplog-used", x: free, y: top, width: Math.max(4, width - free), height: BAR, rx: 5 }),
  h("rect", { class: "zone critical", x: 0, y: top + BAR - 4, width: x(window.critical_ratio), height: 4 }),
  h("rect", { class: "zone warning", x: x(window.critical_ratio), y: top + BAR - 4, width: x(window.half_ratio) - x(window.critical_ratio), height: 4 }),
  h("line", { class: "half", x1: x(window.half_ratio), x2: x(window.half_ratio), y1: top - 4, y2: top + BAR + 4 }),
  h("text", { class: "scale", x: x(window.half_ratio), y: top + BAR + 16, "text-anchor": "middle" }, "half"),
  scaleOf(window, free, width, top),
  markers.map((marker) => pin(marker, top)));
}

// The time of the first entry stands below it, unless it would cover the half line's name.
function scaleOf(window, free, width, top) {
  const y = top + BAR + 16;
  const half = window.half_ratio * width;
  const isClear = Math.abs(free + 30 - half) > 70 && free < width - 140;
  return [
    isClear ? h("text", { class: "scale", x: free, y }, moment(window.first)) : null,
    h("text", { class: "scale", x: width, y, "text-anchor": "end" }, clock(window.last)),
  ];
}

function placed(markers, x, width) {
  const rows = [];
  return [...markers].sort((a, b) => b.ratio - a.ratio || a.name.localeCompare(b.name)).map((marker) => {
    const at = Math.max(5, Math.min(width - 5, x(marker.ratio)));
    const text = `${marker.name} · ${marker.is_lost ? "lost" : duration(marker.age_seconds)}`;
    const size = text.length * 6.6 + 12;
    const isLeft = at + size > width;
    const [left, right] = isLeft ? [at - size, at] : [at, at + size];
    let row = rows.findIndex((taken) => taken.every(([l, r]) => right < l || left > r));
    if (row < 0) row = rows.push([]) - 1;
    rows[row].push([left, right]);
    return { ...marker, at, text, isLeft, row };
  });
}

function pin(marker, top) {
  const y = top - 6 - marker.row * ROW;
  const shape = marker.kind === "stream"
    ? h("path", { d: `M${marker.at} ${top + 5}l6 8l-6 8l-6 -8z` })
    : marker.kind === "job"
      ? h("circle", { cx: marker.at, cy: top + 13, r: 4.5 })
      : h("rect", { x: marker.at - 4, y: top + 9, width: 8, height: 8, rx: 1.5 });
  return h("g", { class: `pin ${marker.kind} ${marker.level}`, "data-key": `${marker.kind}-${marker.name}` },
    h("line", { x1: marker.at, x2: marker.at, y1: y - 9, y2: top + 8 }),
    shape,
    h("text", { x: marker.at + (marker.isLeft ? -7 : 7), y, "text-anchor": marker.isLeft ? "end" : "start" }, marker.text));
}

function forecast(marker, isStill) {
  return h("li", { class: marker.level, "data-key": marker.name },
    h("strong", {}, marker.name), " ", sentence(marker, isStill),
    marker.reasons.length ? h("em", {}, ` ${marker.reasons[0]}`) : null);
}

function sentence(marker, isStill) {
  if (marker.is_lost) return "has lost its history: recover it.";
  const stopped = marker.until_lost_if_stopped_seconds;
  if (isStill) return stopped === null ? "does not move; nothing is being written." : `does not move; ${duration(stopped)} until its history is lost.`;
  const spare = stopped === null ? "nothing is being written." : `${duration(stopped)} left if it stopped now.`;
  // At the end of the oplog a trend is mostly the rounding of cluster times.
  const isClose = marker.level === "ok" && marker.ratio > 0.9;
  if (marker.until_lost_seconds !== null && !isClose) return `loses its history in ${duration(marker.until_lost_seconds)} at this pace; ${spare}`;
  if (marker.until_caught_up_seconds !== null && marker.age_seconds > 5) return `catches up in ${duration(marker.until_caught_up_seconds)}; ${spare}`;
  return `is not losing ground; ${spare}`;
}

function legend() {
  const item = (kind, text) => h("li", {}, h("svg", { width: 14, height: 14, class: `pin ${kind}`, "aria-hidden": "true" },
    kind === "stream" ? h("path", { d: "M7 0l5 7l-5 7l-5 -7z" }) : kind === "job" ? h("circle", { cx: 7, cy: 7, r: 4.5 })
      : h("rect", { x: 3, y: 3, width: 8, height: 8, rx: 1.5 })), text);
  return h("ul", { class: "legend" }, item("stream", "capture"), item("job", "Spark job"), item("watcher", "watcher"),
    h("li", { class: "muted" }, "left of half: more than half of the oplog lies after the position"));
}
