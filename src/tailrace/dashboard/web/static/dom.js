// Trees of elements, and putting a new tree in the place of an old one without losing focus, scroll or animations.

const SVG = "http://www.w3.org/2000/svg";
const SVG_TAGS = new Set(["svg", "g", "path", "rect", "line", "circle", "text", "tspan", "polygon", "defs", "marker",
  "pattern", "foreignObject", "title", "polyline"]);

/** Make an element: h("p", {class: "x"}, "text", child). Attributes that are null or false are left out. */
export function h(tag, attributes = {}, ...children) {
  const inside = tag === "title" || SVG_TAGS.has(tag);
  const element = inside ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (Array.isArray(child)) append(element, child);
    else element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/** Make what is inside an element equal to these nodes, touching only what differs. */
export function fill(element, ...children) {
  const target = element.cloneNode(false);
  append(target, children);
  morphChildren(element, target);
}

function morphChildren(before, after) {
  const wanted = [...after.childNodes];
  const keyed = new Map();
  for (const child of before.childNodes) if (child.dataset?.key) keyed.set(child.dataset.key, child);
  wanted.forEach((node, index) => {
    let current = before.childNodes[index];
    const known = node.dataset?.key ? keyed.get(node.dataset.key) : undefined;
    if (known && known !== current) {
      before.insertBefore(known, current ?? null);
      current = known;
    }
    if (!current) before.append(node);
    else if (!isSame(current, node)) before.replaceChild(node, current);
    else morph(current, node);
  });
  while (before.childNodes.length > wanted.length) before.lastChild.remove();
}

function isSame(before, after) {
  if (before.nodeType !== after.nodeType || before.nodeName !== after.nodeName) return false;
  return (before.dataset?.key ?? "") === (after.dataset?.key ?? "");
}

function morph(before, after) {
  if (before.nodeType === Node.TEXT_NODE) {
    if (before.data !== after.data) before.data = after.data;
    return;
  }
  for (const { name } of [...before.attributes]) {
    // What a person opened stays open.
    if (!after.hasAttribute(name) && name !== "open") before.removeAttribute(name);
  }
  for (const { name, value } of after.attributes) if (before.getAttribute(name) !== value) before.setAttribute(name, value);
  morphChildren(before, after);
}

export const byId = (id) => document.getElementById(id);

/** Say something in a corner for a few seconds. */
export function toast(text, isBad = false) {
  const note = h("p", { class: isBad ? "toast bad" : "toast" }, text);
  byId("toasts").append(note);
  setTimeout(() => note.remove(), isBad ? 9000 : 5000);
}
