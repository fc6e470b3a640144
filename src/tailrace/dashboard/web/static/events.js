// Live events: the newest first, filtered, paused, and each in full on a click.

import { colourOf } from "./charts.js";
import { ask } from "./connection.js";
import { byId, fill, h, toast } from "./dom.js";
import { bytes, clock, duration } from "./format.js";
import { jsonView } from "./json_view.js";

const MOST_KEPT = 500;
const MOST_SHOWN = 120;

export class LiveEvents {
  constructor() {
    this.lines = [];
    this.isPaused = false;
    this.waiting = 0;
    this.operations = new Set();
    byId("event-filter").addEventListener("input", () => this.draw());
    byId("event-operation").addEventListener("change", () => this.draw());
    byId("event-pause").addEventListener("click", () => this.pause());
    byId("event-list").addEventListener("click", (event) => {
      const number = event.target.closest("[data-number]")?.dataset.number;
      if (number) this.open(number);
    });
  }

  add(lines) {
    const newest = this.lines[0]?.number ?? 0;
    const fresh = lines.filter((line) => line.number > newest).reverse();
    if (lines.length && lines[lines.length - 1].number < newest) this.lines = [...lines].reverse(); // begun anew
    else this.lines = [...fresh, ...this.lines].slice(0, MOST_KEPT);
    for (const line of lines) this.operations.add(line.operation);
    this.offerOperations();
    if (this.isPaused) {
      this.waiting += fresh.length;
      this.note();
    } else this.draw();
  }

  pause() {
    this.isPaused = !this.isPaused;
    this.waiting = 0;
    const button = byId("event-pause");
    button.setAttribute("aria-pressed", String(this.isPaused));
    button.textContent = this.isPaused ? "Go on" : "Pause";
    if (this.isPaused) this.note();
    else this.draw();
  }

  offerOperations() {
    const select = byId("event-operation");
    const wanted = [...this.operations].sort();
    if (select.options.length === wanted.length + 1) return;
    const chosen = select.value;
    fill(select, h("option", { value: "" }, "all operations"), wanted.map((name) => h("option", { value: name }, name)));
    select.value = chosen;
  }

  matching() {
    const words = byId("event-filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    const operation = byId("event-operation").value;
    return this.lines.filter((line) => {
      if (operation && line.operation !== operation) return false;
      const text = `${line.namespace} ${line.operation} ${line.key} ${line.summary}`.toLowerCase();
      return words.every((word) => text.includes(word));
    });
  }

  draw() {
    const found = this.matching();
    fill(byId("event-list"), found.slice(0, MOST_SHOWN).map(row));
    this.note(found.length);
  }

  note(found = this.matching().length) {
    const element = byId("event-note");
    element.textContent = this.isPaused ? `Paused. ${this.waiting} events since.`
      : !this.lines.length ? "No event yet."
        : !found ? "No event matches." : "";
    element.hidden = element.textContent === "";
  }

  async open(number) {
    try {
      show(await ask(`/api/events/${number}`));
    } catch (error) {
      toast(`${error.message}. ${error.hint ?? ""}`, true);
    }
  }
}

const chip = (operation) => h("span", { class: `chip ${colourOf(operation)}` }, operation);

function row(line) {
  return h("li", { "data-key": String(line.number) },
    h("button", { type: "button", class: "event", "data-number": line.number },
      h("time", {}, clock(line.at)), chip(line.operation), h("span", { class: "ns" }, line.namespace),
      h("span", { class: "key" }, line.key), h("span", { class: "summary" }, line.summary)));
}

function show(detail) {
  const { line } = detail;
  const dialog = byId("event-dialog");
  const facts = [
    ["Happened", `${clock(line.at, true)}, seen here ${duration(Math.max(0, line.observed_at - line.at))} later`],
    ["Cluster time", line.cluster_time], ["Size", bytes(line.bytes)], ["Read from", detail.source],
  ];
  fill(dialog.querySelector(".dialog-body"),
    h("header", {}, h("h2", { id: "event-dialog-title" }, chip(line.operation), " ", line.namespace),
      h("button", { type: "button", class: "quiet close", "aria-label": "Close" }, "✕")),
    h("dl", { class: "facts" }, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
    h("h3", {}, "Event"), detail.is_cut ? h("p", { class: "hint" }, "Too large to be held: this is its beginning.") : null,
    h("pre", { class: "json", tabindex: "0" }, jsonView(detail.event)),
    h("h3", {}, "Resume token"), h("p", { class: "token" }, detail.token || "none"),
    h("dl", { class: "facts token-parts" }, Object.entries(detail.token_parts).map(([name, value]) =>
      h("div", {}, h("dt", {}, name), h("dd", {}, typeof value === "object" ? JSON.stringify(value) : String(value))))));
  if (!dialog.open) dialog.showModal();
}
