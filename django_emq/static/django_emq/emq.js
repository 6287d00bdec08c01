// The pages work without this file. With it, figures refresh in place, times count down, one box
// ticks a page's rows, and long actions go on by themselves.
"use strict";
(() => {
  const KEY = "django_emq.live";
  const words = document.currentScript.dataset;
  const calm = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
  const parts = () => document.querySelectorAll("[data-emq-live]");
  let live = (localStorage.getItem(KEY) ?? (calm ? "off" : "on")) === "on";
  let read = performance.now();

  const span = (seconds) => {
    const s = Math.abs(seconds);
    for (const [limit, unit, name] of [[120, 1, "s"], [7200, 60, "min"], [172800, 3600, "h"]]) {
      const value = s / unit;
      if (s < limit) return value.toFixed(value < 9.95 && unit !== 60 ? 1 : 0) + " " + name;
    }
    return (s / 86400).toFixed(0) + " d";
  };

  const count = () => {
    const gone = (performance.now() - read) / 1000;
    for (const element of document.querySelectorAll("[data-emq-left]")) {
      const left = Number(element.dataset.emqLeft) - gone;
      element.textContent = (left < 0 ? "−" : "") + span(left);
    }
  };

  // What a user is about to use must not change under the hand: ticked rows, a field with the
  // focus, an open <details>.
  const busy = (part) =>
    part.querySelector("input[type=checkbox]:checked, details[open]") !== null ||
    part.contains(document.activeElement) ||
    part.contains(window.getSelection().isCollapsed ? null : window.getSelection().anchorNode);

  const refresh = async () => {
    if (!live || document.hidden) return;
    let answer;
    try {
      answer = await fetch(location.href, { headers: { "X-Requested-With": "emq" } });
    } catch {
      return mark(false);
    }
    mark(answer.ok);
    if (!answer.ok || answer.redirected) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const part of parts()) {
      const fresh = page.getElementById(part.id);
      if (fresh && !busy(part)) part.replaceChildren(...fresh.childNodes);
    }
    read = performance.now();
  };

  const button = document.createElement("button");
  const mark = (well) => button.classList.toggle("emq-live-bad", !well);
  const show = () => {
    button.setAttribute("aria-pressed", String(live));
    button.title = live ? words.stop : words.start;
  };

  const start = () => {
    const title = document.querySelector("#content h1");
    if (parts().length && title) {
      button.type = "button";
      button.className = "emq-button emq-live";
      button.textContent = words.live;
      button.addEventListener("click", () => {
        live = !live;
        localStorage.setItem(KEY, live ? "on" : "off");
        show();
        refresh();
      });
      show();
      title.append(button);
      const seconds = Math.min(...[...parts()].map((part) => Number(part.dataset.emqLive)));
      setInterval(refresh, seconds * 1000);
    }
    setInterval(count, 1000);
    document.addEventListener("change", (event) => {
      if (!event.target.matches("[data-emq-all]")) return;
      for (const box of event.target.closest("table").querySelectorAll("input[name=ids]")) {
        box.checked = event.target.checked;
      }
    });
    const next = document.querySelector("form[data-emq-auto]");
    if (next) next.requestSubmit();
  };

  start();
})();
