"use strict";
// The live page: asks for itself again and swaps what changed, so that nothing flashes and the reader's
// place, open details, zoom and switched ranks stay. From a file there is nothing to ask. Pages in the
// background ask, too: the server ends soon after the run, and they must have become the report by then.
(() => {
  const stepscope = window.stepscope;
  const seconds = Math.min(Number(document.body.dataset.refreshSeconds), 2); // an unchanged page is not sent again
  const state = document.getElementById("state");
  if (location.protocol === "file:" || !(seconds > 0)) {
    state.textContent = state.textContent.replace("live, updated", "as of");
    return;
  }

  const sections = document.querySelectorAll("main > section");
  sections.forEach((section) => (section.freshMarkup = section.innerHTML));

  async function refresh() {
    let goOn = true;
    try {
      goOn = await update();
    } catch {
      lost();
    }
    if (goOn) setTimeout(refresh, 1000 * seconds);
  }

  let shown = "";
  async function update() {
    const text = await news();
    if (text === shown && !state.classList.contains("lost")) return true;
    const fresh = new DOMParser().parseFromString(text, "text/html");
    const data = fresh.getElementById("chart-data");
    if (!data) throw new Error("not a report");
    stepscope.data = JSON.parse(data.textContent);
    keepingPlace(() => fresh.querySelectorAll("main > section").forEach(swap));
    for (const part of ["header.page .facts", "nav ul"]) {
      const [old, now] = [document, fresh].map((page) => page.querySelector(part));
      if (!old.isEqualNode(now)) old.replaceWith(now); // a link keeps the focus
    }
    state.classList.remove("lost");
    state.replaceChildren(...fresh.getElementById("state").childNodes);
    document.title = fresh.title;
    shown = text;
    return "refreshSeconds" in fresh.body.dataset;
  }

  // What the page shows, without the scripts that run here already; the whole page from a server that cannot part it.
  async function news() {
    for (const address of [`${location.pathname}/content`, location.href]) {
      const answer = await fetch(address, { cache: "no-cache" });
      if (answer.ok) return answer.text();
      if (answer.status !== 404) break;
    }
    throw new Error("no report");
  }

  function swap(section) {
    const old = document.getElementById(section.id) ?? added(section);
    if (old.freshMarkup !== section.innerHTML) {
      old.freshMarkup = section.innerHTML;
      const open = new Map([...old.querySelectorAll("details[id]")].map((details) => [details.id, details.open]));
      section.querySelectorAll("details[id]").forEach((details) => (details.open = open.get(details.id) ?? details.open));
      for (const chart of section.querySelectorAll("[data-chart]")) {
        const drawn = old.querySelector(`[data-chart="${CSS.escape(chart.dataset.chart)}"].drawn`);
        if (!drawn) continue;
        drawn.setAttribute("aria-label", chart.getAttribute("aria-label"));
        drawn.connectAgain = true;
        chart.replaceWith(drawn);
      }
      const scrolled = [...old.querySelectorAll(".scroll")].map((box) => box.scrollLeft);
      old.replaceChildren(...section.childNodes);
      old.querySelectorAll(".scroll").forEach((box, index) => (box.scrollLeft = scrolled[index] || 0));
    }
    old.querySelectorAll("[data-chart].drawn").forEach(stepscope.draw);
    stepscope.watch(old);
  }

  // Lines and operators have a section once there are some.
  function added(section) {
    const empty = section.cloneNode();
    document.getElementById(section.previousElementSibling.id).after(empty);
    return empty;
  }

  // What the reader looks at stays where it is, whatever grew above it; so does the focus.
  function keepingPlace(change) {
    const places = [...document.querySelectorAll("main > section[id], main details[id]")];
    const shown = places.filter((place) => place.getBoundingClientRect().bottom > 60);
    const read = shown.filter((place) => place.getBoundingClientRect().top < 60).pop() ?? shown[0]; // the innermost
    const before = read ? read.getBoundingClientRect().top : 0;
    const focused = pathTo(document.activeElement);
    change();
    if (focused) document.querySelector(focused)?.focus({ preventScroll: true });
    const now = read && document.getElementById(read.id);
    if (now && scrollY > 0) scrollBy({ top: now.getBoundingClientRect().top - before, behavior: "instant" });
  }

  function pathTo(element) {
    if (!element || !element.closest("main")) return null;
    const steps = [];
    for (let at = element; at.tagName !== "MAIN"; at = at.parentElement) {
      steps.unshift(`:nth-child(${[...at.parentElement.children].indexOf(at) + 1})`);
    }
    return `main > ${steps.join(" > ")}`;
  }

  // Whether the run has ended or the server has, this page cannot know: it is no alarm.
  function lost() {
    if (state.classList.contains("lost")) return;
    const path = document.body.dataset.reportPath;
    const since = `${new Date().toISOString().slice(11, 19)} UTC`;
    state.classList.add("lost");
    const dot = document.createElement("span");
    dot.className = "dot";
    dot.ariaHidden = "true";
    state.replaceChildren(dot, `no answer since ${since}` + (path ? `. If the run has ended, its report is ${path}` : ""));
  }

  setTimeout(refresh, 1000 * seconds);
})();
