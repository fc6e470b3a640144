// Runs before the page is drawn, so that a chosen theme does not flash.
"use strict";
(() => {
  const order = ["auto", "light", "dark"];
  const shown = { auto: "◐", light: "☀", dark: "☾" };
  const words = { auto: "automatic", light: "light", dark: "dark" };
  let current = "auto";
  try {
    current = localStorage.getItem("tailrace-theme") || "auto";
  } catch {
    // A browser that keeps nothing shows the automatic theme.
  }
  const apply = (theme) => {
    current = order.includes(theme) ? theme : "auto";
    if (current === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = current;
    const button = document.getElementById("theme-button");
    if (button) {
      button.textContent = shown[current];
      button.setAttribute("aria-label", `Colours: ${words[current]}`);
      button.title = `Colours: ${words[current]}`;
    }
  };
  apply(current);
  addEventListener("DOMContentLoaded", () => {
    apply(current);
    document.getElementById("theme-button").addEventListener("click", () => {
      apply(order[(order.indexOf(current) + 1) % order.length]);
      try {
        localStorage.setItem("tailrace-theme", current);
      } catch {
        // It holds until the page is left.
      }
    });
  });
})();
