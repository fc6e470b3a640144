// JSON with colours, without ever making HTML out of data.

import { h } from "./dom.js";

export function jsonView(value, indent = 0) {
  const pad = "  ".repeat(indent + 1);
  const end = "  ".repeat(indent);
  if (Array.isArray(value)) {
    if (!value.length) return ["[]"];
    return ["[\n", value.flatMap((each, index) => [pad, jsonView(each, indent + 1), index < value.length - 1 ? ",\n" : "\n"]), end, "]"];
  }
  if (value !== null && typeof value === "object") {
    const entries = Object.entries(value);
    if (!entries.length) return ["{}"];
    if (entries.length === 1 && entries[0][0].startsWith("$") && typeof entries[0][1] !== "object") {
      return ["{", h("span", { class: "name" }, `"${entries[0][0]}"`), ": ", jsonView(entries[0][1], indent), "}"];
    }
    return ["{\n", entries.flatMap(([name, each], index) => [
      pad, h("span", { class: "name" }, JSON.stringify(name)), ": ", jsonView(each, indent + 1), index < entries.length - 1 ? ",\n" : "\n",
    ]), end, "}"];
  }
  const kind = typeof value === "string" ? "string" : value === null ? "null" : typeof value;
  return [h("span", { class: kind }, JSON.stringify(value))];
}
