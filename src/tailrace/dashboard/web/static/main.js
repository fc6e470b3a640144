// Puts the page together: every state is drawn, every part on its own, so that one that fails leaves the others alone.

import { Captures } from "./captures.js";
import { Charts } from "./charts.js";
import { follow, hasToken, setToken } from "./connection.js";
import { byId, fill, h } from "./dom.js";
import { Entity } from "./entity.js";
import { LiveEvents } from "./events.js";
import { drawFlow } from "./flow.js";
import { drawOplog } from "./oplog.js";
import { drawPanels } from "./panels.js";

const WORDS = { green: "Healthy", amber: "Warning", red: "Problem", grey: "No data" };
const charts = new Charts();
const events = new LiveEvents();
const entity = new Entity();
const captures = new Captures(askForToken);
let newest = null;
let heard = 0;

function draw(state) {
  newest = state;
  if (document.hidden) return;
  const parts = [
    () => drawOverall(state.overall), () => drawFlow(byId("flow-picture"), state.flow),
    () => drawOplog(byId("window-bars"), state), () => captures.draw(state), () => entity.draw(state.features),
    () => drawPanels(state), () => fill(byId("version"), `tailrace ${state.version}`),
  ];
  for (const part of parts) {
    try {
      part();
    } catch (error) {
      console.error(error);
    }
  }
}

function drawOverall(overall) {
  const element = byId("overall");
  element.className = `overall ${overall.colour}`;
  fill(element, h("span", { class: "dot" }), h("b", {}, WORDS[overall.colour]), h("span", {}, overall.reason));
  document.title = overall.colour === "green" ? "tailrace" : `${WORDS[overall.colour]} – tailrace`;
}

function say(text, kind) {
  const element = byId("connection");
  element.textContent = text;
  element.className = `connection ${kind}`;
}

// --- the token

let tokenGiven = null;

function askForToken(why = "") {
  const dialog = byId("token-dialog");
  if (why) byId("token-why").textContent = why;
  byId("token-input").value = "";
  if (!dialog.open) dialog.showModal();
  return new Promise((done) => {
    dialog.addEventListener("close", () => {
      if (dialog.returnValue === "keep") setToken(byId("token-input").value.trim());
      if (dialog.returnValue === "forget") setToken(null);
      markToken();
      done(hasToken());
      tokenGiven?.();
    }, { once: true });
  });
}

function markToken() {
  byId("token-button").textContent = hasToken() ? "Token ✓" : "Token";
}

byId("token-button").addEventListener("click", () => askForToken());
markToken();

// --- dialogs and tips

for (const dialog of document.querySelectorAll("dialog")) {
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog || event.target.closest(".close")) dialog.close();
  });
}

function showTip(target) {
  const tip = byId("tip");
  const text = target?.dataset.tip;
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text;
  const place = target.getBoundingClientRect();
  const left = Math.max(8, Math.min(innerWidth - tip.offsetWidth - 8, place.left));
  const below = place.bottom + 8 + tip.offsetHeight < innerHeight;
  tip.style.left = `${left}px`;
  tip.style.top = `${below ? place.bottom + 8 : place.top - tip.offsetHeight - 8}px`;
}

for (const kind of ["pointerover", "focusin"]) {
  document.addEventListener(kind, (event) => showTip(event.target.closest?.("[data-tip]")));
}
document.addEventListener("focusout", () => showTip(null));

// --- keeping up

setInterval(() => {
  const silent = (Date.now() - heard) / 1000;
  if (heard && silent > 5) say(`last heard ${Math.round(silent)} s ago`, "lost");
}, 1000);

document.addEventListener("visibilitychange", () => {
  if (document.hidden || !newest) return;
  charts.load().catch(() => {});
  draw(newest);
});

let resizing = 0;
addEventListener("resize", () => {
  clearTimeout(resizing);
  resizing = setTimeout(() => {
    if (newest) draw(newest);
    charts.draw();
  }, 100);
});

follow({
  opened: () => {
    say("live", "live");
    charts.load().catch(() => {});
  },
  lost: (error) => say(heard ? "connecting again…" : error.message, "lost"),
  refused: () => {
    say("token needed", "lost");
    setToken(null);
    askForToken("This dashboard is shown to those who know its token (dashboard.token). It stays in this tab until it is closed.");
  },
  tokenGiven: () => new Promise((done) => {
    tokenGiven = done;
  }),
  state: (state) => {
    heard = Date.now();
    say("live", "live");
    charts.add(state);
    draw(state);
  },
  events: (lines) => events.add(lines),
});
