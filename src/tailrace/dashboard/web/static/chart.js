// A line chart in SVG: a fixed time span, a few series, a crosshair for mouse and keyboard.

import { fill, h } from "./dom.js";
import { clock } from "./format.js";

const HEIGHT = 168;
const PAD = { top: 8, right: 6, bottom: 20, left: 46 };
export const MOST_SERIES = 8;

export class Chart {
  /** `format` shows a value; `series(data)` gives [{name, title, colour}] from the names that have data. */
  constructor(parent, { title, note, format, series }) {
    this.title = title;
    this.format = format;
    this.choose = series;
    this.cursor = null;
    this.plot = h("div", { class: "plot", tabindex: "0", role: "img" });
    this.legend = h("ul", { class: "legend" });
    this.element = h("figure", { class: "card chart" },
      h("figcaption", {}, h("h3", {}, title), h("small", {}, note)), this.plot, this.legend);
    parent.append(this.element);
    this.plot.addEventListener("pointermove", (event) => this.point(event.offsetX));
    this.plot.addEventListener("pointerleave", () => this.point(null));
    this.plot.addEventListener("blur", () => this.point(null));
    this.plot.addEventListener("keydown", (event) => this.step(event));
  }

  draw(data) {
    this.data = data;
    this.shown = this.choose(data).slice(0, MOST_SERIES);
    this.render();
  }

  point(x) {
    if (!this.scale) return;
    this.cursor = x === null ? null : this.scale.indexAt(x);
    this.render();
  }

  step(event) {
    const change = { ArrowLeft: -1, ArrowRight: 1, Home: -1e9, End: 1e9 }[event.key];
    if (!change || !this.data?.at.length) return;
    event.preventDefault();
    const last = this.data.at.length - 1;
    this.cursor = Math.max(0, Math.min(last, (this.cursor ?? last) + change));
    this.render();
  }

  render() {
    if (!this.data) return;
    const width = Math.max(240, this.plot.clientWidth);
    const scale = (this.scale = scaleOf(this.data, this.shown, width));
    const lines = this.shown.map((one) => h("path", {
      "data-key": one.name, class: `series ${one.colour}`, d: pathOf(this.data, one.name, scale),
    }));
    fill(this.plot, h("svg", { width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, "aria-hidden": "true" },
      grid(scale, width, this.format), lines, this.crosshair(scale)), this.empty());
    fill(this.legend, this.shown.map((one) => this.entry(one)));
    this.plot.setAttribute("aria-label", `${this.title}: ${this.shown.map((one) => `${one.title} ${this.format(this.valueOf(one))}`).join(", ") || "no data yet"}`);
  }

  empty() {
    return this.shown.length ? null : h("p", { class: "empty" }, "no data yet");
  }

  entry(one) {
    return h("li", { "data-key": one.name }, h("i", { class: `swatch ${one.colour}` }), h("span", {}, one.title),
      h("b", {}, this.format(this.valueOf(one))));
  }

  /** The value at the crosshair, or the newest. */
  valueOf(one) {
    const values = this.data.series[one.name] ?? [];
    if (this.cursor !== null) return values[this.cursor] ?? null;
    for (let index = values.length - 1; index >= Math.max(0, values.length - 5); index -= 1) {
      if (values[index] !== null && values[index] !== undefined) return values[index];
    }
    return null;
  }

  crosshair(scale) {
    if (this.cursor === null || this.data.at[this.cursor] === undefined) return null;
    const x = scale.x(this.data.at[this.cursor]);
    const dots = this.shown.map((one) => {
      const value = this.data.series[one.name]?.[this.cursor];
      return value === null || value === undefined ? null
        : h("circle", { class: `dot ${one.colour}`, cx: x, cy: scale.y(value), r: 3.5 });
    });
    const isLeft = x > scale.right - 60;
    return h("g", { class: "crosshair" }, h("line", { x1: x, x2: x, y1: PAD.top, y2: HEIGHT - PAD.bottom }), dots,
      h("text", { x: isLeft ? x - 5 : x + 5, y: PAD.top + 9, "text-anchor": isLeft ? "end" : "start" }, clock(this.data.at[this.cursor])));
  }
}

function scaleOf(data, shown, width) {
  const seconds = data.span === "1h" ? 3600 : 300;
  const end = data.at.length ? data.at[data.at.length - 1] : Date.now() / 1000;
  const start = end - seconds;
  let most = 0;
  for (const one of shown) for (const value of data.series[one.name] ?? []) if (value > most) most = value;
  const { top, step } = nice(most);
  const right = width - PAD.right;
  const bottom = HEIGHT - PAD.bottom;
  const x = (at) => PAD.left + ((at - start) / seconds) * (right - PAD.left);
  const y = (value) => bottom - (value / top) * (bottom - PAD.top);
  const indexAt = (px) => {
    if (!data.at.length) return null;
    const at = start + ((px - PAD.left) / (right - PAD.left)) * seconds;
    let best = 0;
    data.at.forEach((each, index) => {
      if (Math.abs(each - at) < Math.abs(data.at[best] - at)) best = index;
    });
    return best;
  };
  return { x, y, top, step, start, end, seconds, right, bottom, indexAt };
}

// A round number above the greatest value, and steps that people count in.
function nice(most) {
  if (most <= 0) return { top: 1, step: 1 };
  const raw = most / 3;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((each) => each * power).find((each) => each >= raw);
  return { top: Math.ceil(most / step) * step, step };
}

function grid(scale, width, format) {
  const parts = [];
  for (let value = 0; value <= scale.top + scale.step / 10; value += scale.step) {
    const y = scale.y(value);
    parts.push(h("line", { class: "grid", x1: PAD.left, x2: scale.right, y1: y, y2: y }),
      h("text", { class: "tick", x: PAD.left - 6, y: y + 3.5, "text-anchor": "end" }, format(value)));
  }
  const minutes = scale.seconds / 60;
  for (const share of [0, 0.25, 0.5, 0.75, 1]) {
    const back = Math.round(minutes * (1 - share) * 4) / 4;
    const text = share === 1 ? "now" : `−${Number.isInteger(back) ? back : back.toFixed(1)} min`;
    if (width < 330 && (share === 0.25 || share === 0.75)) continue;
    parts.push(h("text", {
      class: "tick", x: PAD.left + share * (scale.right - PAD.left), y: HEIGHT - 5,
      "text-anchor": share === 0 ? "start" : share === 1 ? "end" : "middle",
    }, text));
  }
  return parts;
}

function pathOf(data, name, scale) {
  const values = data.series[name] ?? [];
  let path = "";
  let isOpen = false;
  for (let index = 0; index < data.at.length; index += 1) {
    const value = values[index];
    if (value === null || value === undefined || data.at[index] < scale.start) {
      isOpen = false;
      continue;
    }
    path += `${isOpen ? "L" : "M"}${scale.x(data.at[index]).toFixed(1)} ${scale.y(value).toFixed(1)}`;
    isOpen = true;
  }
  return path;
}
