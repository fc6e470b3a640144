// The captures, and what may be asked of them: pause, resume, snapshot, and a recovery after its dry run.

import { ask, hasToken } from "./connection.js";
import { byId, fill, h, toast } from "./dom.js";
import { badge } from "./flow.js";
import { ago, bytes, count, duration, moment, rate } from "./format.js";
import { jsonView } from "./json_view.js";
import { emptiness } from "./panels.js";

export class Captures {
  constructor(askForToken) {
    this.askForToken = askForToken;
    this.actions = { enabled: false, reason: "" };
    byId("captures-list").addEventListener("click", (event) => {
      const button = event.target.closest("[data-action]");
      if (button && !button.disabled) this.begin(button.dataset.action, button.dataset.producer, button.dataset.stream);
    });
  }

  draw(state) {
    this.actions = state.actions;
    byId("actions-hint").textContent = state.actions.enabled ? "" : `Actions are off: ${state.actions.reason}.`;
    const element = byId("captures-list");
    if (!state.streams.length) {
      const none = "No capture is known: no producer answers, and the position store is empty.";
      fill(element, h("p", { class: "empty" }, emptiness(state, "positions", none)));
      return;
    }
    fill(element, state.streams.map((stream) => this.card(stream, state.at)));
  }

  card(stream, now) {
    const errors = Object.entries(stream.errors);
    const facts = [
      ["Lag", duration(stream.position_age_seconds)], ["Events", `${count(stream.events)} · ${rate(stream.events_per_second)}`],
      ["Bytes", `${bytes(stream.bytes)} · ${bytes(stream.bytes_per_second)}/s`], ["Batches", count(stream.batches)],
      ["Position", moment(stream.cluster_time)], ["Saved", ago(stream.saved_at, now)],
      ["Headroom", stream.headroom_ratio === null ? "–" : `${Math.round(stream.headroom_ratio * 100)} %`],
      ["Dead letters", count(stream.dead_letters)],
      ["Reads", stream.source ?? "–"], ["Delivers", stream.delivery ? `${stream.format}, ${stream.delivery}` : "–"],
      ["Running for", stream.started_at === null ? "–" : duration(now - stream.started_at)],
      ["Errors", errors.length ? errors.map(([code, number]) => `${code} ${number}`).join(", ") : "none"],
    ];
    return h("article", { class: "capture", "data-key": stream.name },
      h("header", {}, h("h3", {}, stream.name, " ", badge(stream.condition.colour, stream.state)),
        h("div", { class: "controls" }, this.buttons(stream))),
      h("p", { class: "hint" }, stream.condition.reason),
      stream.snapshot && !stream.snapshot.finished ? progress(stream.snapshot) : null,
      h("dl", { class: "facts" }, facts.map(([name, value]) => h("div", { "data-key": name }, h("dt", {}, name), h("dd", {}, value)))));
  }

  buttons(stream) {
    const isOff = !this.actions.enabled || stream.producer === null;
    const why = stream.producer === null ? "Its producer does not answer" : this.actions.enabled ? null : this.actions.reason;
    const button = (action, text) => h("button", {
      type: "button", "data-action": action, "data-producer": stream.producer, "data-stream": stream.name, disabled: isOff, title: why,
    }, text);
    return [stream.state === "paused" ? button("resume", "Resume") : button("pause", "Pause"), button("snapshot", "Snapshot…"), button("recover", "Recover…")];
  }

  async begin(action, producer, stream) {
    if (!hasToken() && !(await this.askForToken())) return;
    if (action === "snapshot") this.offerSnapshot(producer, stream);
    else if (action === "recover") this.offerRecovery(producer, stream);
    else this.send(action, { producer });
  }

  async send(action, body) {
    try {
      const answer = await ask(`/api/actions/${action}`, body);
      if (!answer.confirmation) toast(`The producer takes it: ${action}.`);
      return answer;
    } catch (error) {
      toast(`${error.message}. ${error.hint ?? ""}`, true);
      if (error.status === 401) this.askForToken();
      return null;
    }
  }

  dialog(...content) {
    const dialog = byId("action-dialog");
    fill(dialog.querySelector(".dialog-body"), ...content);
    if (!dialog.open) dialog.showModal();
    return dialog;
  }

  offerSnapshot(producer, stream) {
    const dialog = this.dialog(head(`Snapshot of ${stream}`),
      h("p", {}, "Every document is read once more and delivered beside the live events. The stream goes on meanwhile."),
      h("label", { for: "snapshot-names" }, "Collections, with commas; none are all that are captured"),
      h("input", { id: "snapshot-names", placeholder: "shop.orders, shop.users", autocomplete: "off", spellcheck: "false" }),
      h("menu", {}, h("button", { type: "button", class: "close" }, "Cancel"), h("button", { type: "button", class: "primary", id: "snapshot-go" }, "Start the snapshot")));
    byId("snapshot-go").onclick = async () => {
      const namespaces = byId("snapshot-names").value.split(",").map((name) => name.trim()).filter(Boolean);
      if (await this.send("snapshot", { producer, namespaces })) dialog.close();
    };
  }

  async offerRecovery(producer, stream) {
    this.dialog(head(`Recovery of ${stream}`), h("p", { class: "hint" }, "Asking what a recovery would do…"));
    const answer = await this.send("recover", { producer, dry_run: true });
    const dialog = byId("action-dialog");
    if (!answer) {
      dialog.close();
      return;
    }
    this.dialog(head(`Recovery of ${stream}`),
      h("p", {}, "Nothing has been done yet. ", ...planned(answer.answer)),
      h("details", {}, h("summary", {}, "What the producer answered"), h("pre", { class: "json", tabindex: "0" }, jsonView(answer.answer))),
      h("menu", {}, h("button", { type: "button", class: "close" }, "Leave it"), h("button", { type: "button", class: "danger", id: "recover-go" }, "Recover now")));
    byId("recover-go").onclick = async () => {
      if (await this.send("recover", { producer, dry_run: false, confirmation: answer.confirmation })) dialog.close();
    };
  }
}

const head = (title) => h("header", {}, h("h2", { id: "action-dialog-title" }, title),
  h("button", { type: "button", class: "quiet close", "aria-label": "Close" }, "✕"));

// What a dry run says, in words.
function planned(plan) {
  const names = Object.keys(plan.documents ?? {});
  const total = Object.values(plan.documents ?? {}).reduce((sum, number) => sum + number, 0);
  const reading = `A recovery reads about ${count(total)} documents of ${names.join(", ") || "no collection"} once more and finds deletes with ${plan.inventory}.`;
  const need = plan.is_lost || plan.gap ? h("b", {}, "History is lost.") : h("b", {}, "No history is lost: nothing needs a recovery.");
  const refused = plan.refused ? [" ", h("b", {}, "It would be refused:"), ` ${plan.refused}.`] : [];
  return [need, ` ${reading}`, ...refused];
}

function progress(snapshot) {
  const left = snapshot.seconds_left === null ? "" : `, ${duration(snapshot.seconds_left)} left`;
  return h("p", { class: "progress" },
    h("progress", { max: Math.max(1, snapshot.documents), value: snapshot.documents_read, "aria-label": "Snapshot" }),
    ` snapshot: ${count(snapshot.documents_read)} of ${count(snapshot.documents)} documents, ${rate(snapshot.documents_per_second)}${left}`);
}
