"use strict";
// Draws each chart when it comes near the screen; redraws for width, dark mode and paper.
(() => {
  const stepscope = (window.stepscope = window.stepscope || { charts: {} });
  const PAPER_WIDTH = 690; // CSS pixels of an A4 page within its margins

  stepscope.NOTHING_SAMPLED = 255;

  stepscope.data = JSON.parse(document.getElementById("chart-data").textContent);

  stepscope.draw = (element) => {
    const data = stepscope.data[element.dataset.chart];
    const kind = data && stepscope.charts[data.kind];
    const width = paper ? PAPER_WIDTH : element.clientWidth;
    if (!kind || width === 0) return; // inside a closed <details>
    element.chartData = data;
    const height = kind.height(data);
    element.style.height = `${height}px`;
    let chart = echarts.getInstanceByDom(element);
    const zoom = chart && (chart.getOption().dataZoom || [])[0];
    const shown = chart && (chart.getOption().legend || [])[0];
    const first = !chart;
    if (first) chart = echarts.init(element, null, { renderer: "canvas", width, height });
    else chart.resize({ width, height });
    const option = kind.option(data, look(), width, element);
    if (zoom) Object.assign(option.dataZoom[0], { start: zoom.start, end: zoom.end });
    if (shown && option.legend) option.legend.selected = { ...option.legend.selected, ...shown.selected };
    chart.setOption(option, { notMerge: true });
    element.classList.add("drawn");
    if (first && kind.attach) kind.attach(chart, element); // once per chart
    if (first || element.connectAgain) kind.connect(chart, element); // and to the controls next to it, if these are new
    element.connectAgain = false;
  };

  stepscope.watch = (root) => root.querySelectorAll("[data-chart]").forEach((element) => near.observe(element));

  // The bytes of something that has `cells` in base64.
  stepscope.bytesOf = (data) => {
    data.bytes = data.bytes || Uint8Array.from(atob(data.cells), (character) => character.charCodeAt(0));
    return data.bytes;
  };

  stepscope.timeOfDay = (time, span) => {
    const iso = new Date(time).toISOString();
    return span > 36 * 3600e3 ? `${iso.slice(5, 10)} ${iso.slice(11, 16)}` : iso.slice(11, span > 2 * 3600e3 ? 16 : 19);
  };

  // A checkbox a series, which the keyboard and a screen reader reach (a legend on canvas they do not).
  stepscope.switches = (chart, element, names) => {
    const box = document.querySelector(`[data-switches-of="${CSS.escape(element.dataset.chart)}"]`);
    if (!box || names.length < 2) return;
    box.hidden = false;
    box.querySelectorAll("label").forEach((label) => label.remove());
    const shown = chart.getOption().legend[0].selected;
    const series = chart.getOption().series.map((one) => one.name);
    const colours = chart.getOption().color;
    for (const name of names) {
      const label = document.createElement("label");
      const input = document.createElement("input");
      input.type = "checkbox";
      input.checked = shown[name] !== false;
      input.style.accentColor = colours[series.indexOf(name) % colours.length];
      input.onchange = () => chart.dispatchAction({ type: input.checked ? "legendSelect" : "legendUnSelect", name });
      label.append(input, ` ${name}`);
      box.append(label);
    }
  };

  const near = new IntersectionObserver(
    (entries) => entries.filter((entry) => entry.isIntersecting && !echarts.getInstanceByDom(entry.target)).forEach((entry) => stepscope.draw(entry.target)),
    { rootMargin: "600px" },
  );
  let paper = false;

  function look() {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    return {
      text: colour("text"), soft: colour("soft"), line: colour("line"), page: colour("page"),
      missing: colour("missing"), track: colour("track"), of: colour, filler: `${colour("training-loop")}40`,
      tooltip: { confine: true, backgroundColor: colour("text"), borderWidth: 0, padding: [4, 8], textStyle: { color: colour("page"), fontSize: 13 } },
      font: getComputedStyle(document.body).fontFamily,
      series: ["training-loop", "data-wait", "optimizer", "communication", "backward", "checkpoint", "host-to-device", "gc"].map(colour),
    };
  }

  function redraw(all) {
    for (const element of document.querySelectorAll("[data-chart]")) {
      if (all || echarts.getInstanceByDom(element)) stepscope.draw(element);
    }
  }

  let waiting = 0;
  addEventListener("resize", () => {
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(() => redraw(false));
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraw(false));
  let unfolded = [];
  const onPaper = (on) => {
    paper = on;
    if (on) unfolded = [...document.querySelectorAll("details.section:not([open])")];
    unfolded.forEach((section) => (section.open = on));
    document.documentElement.classList.toggle("printing", on);
    redraw(on);
  };
  addEventListener("beforeprint", () => onPaper(true));
  addEventListener("afterprint", () => onPaper(false));
  document.addEventListener("toggle", (event) => event.target.open && stepscope.watch(event.target), true);

  // A link into something folded away unfolds it.
  const unfold = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    const own = target.querySelector(":scope > details.section");
    for (let one = own || target.closest("details"); one; one = one.parentElement.closest("details")) one.open = true;
    target.scrollIntoView();
  };
  addEventListener("hashchange", unfold);
  unfold();

  stepscope.watch(document);
})();
