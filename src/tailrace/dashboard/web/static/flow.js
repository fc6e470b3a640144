// The picture of the pipeline: boxes with their condition, arrows with rate and latency.

import { fill, h } from "./dom.js";
import { duration, rate } from "./format.js";

const WORDS = { green: "healthy", amber: "warning", red: "problem", grey: "no data" };
const BOX_HEIGHT = 132;
const NARROW = 860;
const PLATE = 62;

export function drawFlow(element, flow) {
  const width = Math.max(280, element.clientWidth);
  const layout = width < NARROW ? tall(flow, width) : wide(flow, width);
  const boxes = flow.boxes.map((box) => boxOf(box, layout.places[box.id]));
  const colours = Object.fromEntries(flow.boxes.map((box) => [box.id, box.condition.colour]));
  const arrows = flow.arrows.map((arrow) => arrowOf(arrow, layout, colours));
  fill(element, h("svg", {
    width, height: layout.height, viewBox: `0 0 ${width} ${layout.height}`, role: "group",
    "aria-label": "The pipeline from MongoDB to Redis and Iceberg",
  }, h("defs", {}, head("flowing"), head("still")), arrows, boxes));
}

const head = (kind) => h("marker", {
  id: `head-${kind}`, class: `head ${kind}`, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 8, markerHeight: 8,
  markerUnits: "userSpaceOnUse", orient: "auto",
}, h("path", { d: "M0 0L8 4L0 8z" }));

// Columns from left to right; the gateway stands below capture, the tables below the features.
function wide(flow, width) {
  const hasGateway = flow.boxes.some((box) => box.id === "gateway");
  const gap = Math.max(72, Math.min(132, width * 0.085));
  const box = (width - 3 * gap) / 4;
  const column = (number) => number * (box + gap);
  const lower = BOX_HEIGHT + 40;
  const middle = lower / 2;
  const top = hasGateway ? 0 : middle;
  const at = (number, y) => ({ x: column(number), y, width: box, height: BOX_HEIGHT });
  return {
    height: lower + BOX_HEIGHT + 2,
    isTall: false,
    places: {
      mongodb: at(0, middle), capture: at(1, top), sink: at(2, top), gateway: at(1, lower),
      features: at(3, 0), tables: at(3, lower),
    },
  };
}

// One below the other for a phone; what comes from the same box hangs on one rail.
function tall(flow, width) {
  const depth = { mongodb: 0, gateway: 1, capture: 1, sink: 1, features: 2, tables: 2 };
  const order = ["mongodb", "gateway", "capture", "sink", "features", "tables"];
  const places = {};
  let y = 0;
  for (const id of order.filter((id) => flow.boxes.some((box) => box.id === id))) {
    const x = depth[id] * 22;
    places[id] = { x, y, width: width - x, height: BOX_HEIGHT };
    y += BOX_HEIGHT + 34;
  }
  return { height: y - 32, isTall: true, places };
}

function boxOf(box, place) {
  const { colour, reason } = box.condition;
  const facts = box.facts.map((fact) => h("div", {}, h("dt", {}, fact.label), h("dd", {}, fact.value)));
  return h("foreignObject", { "data-key": box.id, x: place.x, y: place.y, width: place.width, height: place.height },
    h("div", {
      class: `box ${colour}`, id: `box-${box.id}`, role: "group", tabindex: "0",
      "aria-label": `${box.title}: ${WORDS[colour]}. ${reason}`, "data-tip": `${box.title} · ${box.location}\n${reason}`,
    },
    h("div", { class: "box-head" }, h("strong", {}, box.title), badge(colour)),
    h("p", { class: "location" }, box.location),
    facts.length ? h("dl", {}, facts) : null,
    h("p", { class: "reason" }, reason)));
}

export const badge = (colour, word = WORDS[colour]) => h("span", { class: `badge ${colour}` }, word);

function arrowOf(arrow, layout, colours) {
  const from = layout.places[arrow.source];
  const to = layout.places[arrow.target];
  const isFlowing = (arrow.events_per_second ?? 0) > 0 && colours[arrow.target] !== "red";
  const { path, x, y, anchor } = layout.isTall ? rail(from, to) : curve(from, to);
  const kind = isFlowing ? "flowing" : "still";
  const numbers = [rate(arrow.events_per_second), duration(arrow.latency_seconds)];
  const isKnown = arrow.events_per_second !== null || arrow.latency_seconds !== null;
  const label = !isKnown ? null : layout.isTall
    ? h("text", { x, y, "text-anchor": anchor, class: "arrow-label" },
      h("tspan", { class: "rate" }, numbers[0]), h("tspan", { class: "latency", dx: 8 }, numbers[1]))
    : [h("rect", { class: "plate", x: x - PLATE / 2, y: y - 19, width: PLATE, height: 38, rx: 9 }),
      h("text", { "text-anchor": "middle", class: "arrow-label" },
        h("tspan", { class: "rate", x, y: y - 3 }, numbers[0]), h("tspan", { class: "latency", x, y: y + 12 }, numbers[1]))];
  const words = `${arrow.source} to ${arrow.target}: ${numbers[0]}, ${arrow.hop} ${numbers[1]}`;
  return h("g", { "data-key": `${arrow.source}-${arrow.target}`, class: `arrow ${kind}`, role: "img", "aria-label": words },
    h("title", {}, words),
    h("path", { class: "line", d: path, "marker-end": `url(#head-${kind})` }),
    isFlowing ? h("path", { class: `drops ${pace(arrow.events_per_second)}`, d: path }) : null,
    label);
}

const pace = (events) => (events > 500 ? "fast" : events > 20 ? "brisk" : "slow");

function curve(from, to) {
  const x1 = from.x + from.width + 2;
  const x2 = to.x - 3;
  const y1 = from.y + from.height / 2 + (to.y > from.y ? 14 : to.y < from.y ? -14 : 0);
  const y2 = to.y + to.height / 2;
  const middle = (x1 + x2) / 2;
  const path = y1 === y2 ? `M${x1} ${y1}H${x2}` : `M${x1} ${y1}C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}`;
  return { path, x: middle, y: (y1 + y2) / 2, anchor: "middle" };
}

function rail(from, to) {
  const isBelow = to.x === from.x;
  const x1 = from.x + 11;
  const y1 = from.y + from.height + 1;
  const path = isBelow ? `M${x1} ${y1}V${to.y - 3}` : `M${x1} ${y1}V${to.y + 26}H${to.x - 3}`;
  return { path, x: to.x + to.width - 6, y: to.y - 11, anchor: "end" };
}
