"use strict";
// Flame graphs: the width is time, and below each function is what it called. A click fills the width with one.
(() => {
  const stepscope = (window.stepscope = window.stepscope || { charts: {} });
  const ROW = 20;

  stepscope.charts.flames = {
    height: (data) => ROW * (1 + Math.max(...data.flames.map((flame) => flame[0]))) + 8,

    option(data, look, _width, element) {
      const shown = data.flames.find((flame) => pathOf(data, flame) === element.shownPath);
      const [, from, seconds] = shown || data.flames[0];
      const whole = data.flames[0][2];
      return {
        animation: false,
        textStyle: { fontFamily: look.font },
        grid: { left: 0, right: 0, top: 4, bottom: 4 },
        tooltip: { trigger: "item", ...look.tooltip, formatter: (point) => tooltip(data, point.value, whole) },
        xAxis: { type: "value", show: false, min: from, max: from + seconds },
        yAxis: { type: "value", show: false, inverse: true, min: 0, max: 1 + Math.max(...data.flames.map((flame) => flame[0])) },
        series: [{ type: "custom", clip: true, data: data.flames, encode: { x: [1, 2], y: 0 }, renderItem: (_, api) => rectangle(data, look, api) }],
      };
    },

    attach(chart, element) {
      chart.on("click", (event) => {
        const path = pathOf(element.chartData, element.chartData.flames[event.dataIndex]);
        element.shownPath = element.shownPath === path ? undefined : path;
        stepscope.draw(element);
      });
    },

    connect() {},
  };

  // The names from the outermost caller on: the live page finds a function by them in newer data.
  function pathOf(data, [, , , name, caller]) {
    const outer = caller < 0 ? "" : pathOf(data, data.flames[caller]);
    return `${outer}\n${data.names[name]}`;
  }

  function rectangle(data, look, api) {
    const [left, top] = api.coord([api.value(1), api.value(0)]);
    const [right] = api.coord([api.value(1) + api.value(2), api.value(0)]);
    const from = Math.max(left, 0);
    const width = Math.min(right, api.getWidth()) - from;
    if (width < 0.5) return undefined;
    const name = data.names[api.value(3)];
    return {
      type: "rect",
      shape: { x: from, y: top, width: Math.max(width - 1, 0.5), height: ROW - 1 },
      style: { fill: fill(name, api.value(0), look), text: undefined },
      textContent: width < 30 ? undefined : { style: { text: name, fill: look.text, font: `12px ${look.font}`, width: width - 8, overflow: "truncate", ellipsis: "…" } },
      textConfig: { position: "insideLeft", distance: 4 },
    };
  }

  // The user's own functions, which name a file and a line, stand out.
  function fill(name, row, look) {
    if (row < 2) return look.track;
    return `${look.of(/:\d+$/.test(name) ? "data-wait" : "training-loop")}${row % 2 ? "59" : "40"}`;
  }

  function tooltip(data, [, , seconds, name], whole) {
    const box = document.createElement("div");
    box.textContent = `${data.names[name]}: ${((100 * seconds) / whole).toPrecision(2)} %, ${Number(seconds.toPrecision(3))} s`;
    return box;
  }
})();
