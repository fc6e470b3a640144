// The features of an entity that somebody types, kept up to date while it is shown.

import { ask } from "./connection.js";
import { byId, fill, h } from "./dom.js";
import { duration, moment } from "./format.js";

const EVERY = 2000;

export class Entity {
  constructor() {
    this.entity = "";
    this.sets = "";
    byId("entity-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.entity = byId("entity-name").value.trim();
      this.show();
    });
    byId("entity-set").addEventListener("change", () => this.show());
    setInterval(() => {
      if (this.entity && !document.hidden) this.show();
    }, EVERY);
  }

  draw(features) {
    const names = features.map((one) => one.name);
    if (names.join() === this.sets) return;
    this.sets = names.join();
    const select = byId("entity-set");
    const chosen = select.value;
    fill(select, features.map((one) => h("option", { value: one.name }, one.name)));
    if (names.includes(chosen)) select.value = chosen;
    select.hidden = names.length < 2;
    if (features.length === 1) byId("entity-name").placeholder = `A ${features[0].entity}, such as 42`;
  }

  async show() {
    const element = byId("entity-values");
    const set = byId("entity-set").value;
    if (!this.entity) return;
    if (!set) {
      fill(element, h("p", { class: "empty" }, "No features job has written to Redis yet."));
      return;
    }
    try {
      draw(element, await ask(`/api/features/${encodeURIComponent(set)}/${encodeURIComponent(this.entity)}`));
    } catch (error) {
      fill(element, h("p", { class: "empty bad" }, `${error.message}. ${error.hint ?? ""}`));
    }
  }
}

function draw(element, found) {
  const values = Object.entries(found.values).map(([name, value]) =>
    h("div", { "data-key": name }, h("dt", {}, name.replaceAll("_", " ")), h("dd", {}, shown(value))));
  const about = found.as_of === null ? "Redis knows no event of this entity."
    : `Newest event ${moment(found.as_of)}, in Redis ${found.freshness_seconds === null ? "" : `${duration(found.freshness_seconds)} later`}.`;
  fill(element, h("p", { class: "entity-head" }, h("b", {}, found.entity), h("small", {}, ` in ${found.name}`)),
    h("dl", { class: "values" }, values), h("p", { class: "hint" }, about));
}

function shown(value) {
  if (value === null) return "–";
  if (typeof value !== "number") return typeof value === "object" ? JSON.stringify(value) : String(value);
  return Number.isInteger(value) ? value.toLocaleString("en") : value.toLocaleString("en", { maximumFractionDigits: 2 });
}
