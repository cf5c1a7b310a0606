"use strict";
// How long steps took over the run: a line of those that were kept, and outliers as marks.
(() => {
  const stepscope = (window.stepscope = window.stepscope || { charts: {} });

  stepscope.charts.durations = {
    height: () => 260,

    option(data, look, width) {
      const all = [...data.steps, ...data.outliers].map((step) => step[1]).filter((seconds) => seconds > 0);
      const apart = Math.max(...all) > 5 * Math.min(...all);
      const numbers = [...data.steps, ...data.outliers].map((step) => step[0]);
      return {
        animation: false,
        textStyle: { fontFamily: look.font },
        color: [look.series[0], look.series[1]],
        grid: { left: width < 500 ? 58 : 64, right: 28, top: 30, bottom: 46 },
        tooltip: {
          trigger: "item", ...look.tooltip,
          formatter: (point) => tooltip(point.value),
        },
        xAxis: {
          type: "value", name: "step number", nameLocation: "middle", nameGap: 28, minInterval: 1, min: Math.min(...numbers), max: Math.max(...numbers),
          nameTextStyle: { color: look.soft }, axisLabel: { color: look.soft, hideOverlap: true },
          axisLine: { lineStyle: { color: look.line } }, splitLine: { show: false },
        },
        yAxis: {
          ...(apart ? { type: "log", name: "logarithmic", min: roundedDown(Math.min(...all)), max: roundedUp(Math.max(...all)) } : { type: "value", min: 0 }),
          nameTextStyle: { color: look.soft, align: "left" }, axisLabel: { color: look.soft, formatter: words, showMinLabel: true, showMaxLabel: true }, splitLine: { lineStyle: { color: look.line } },
        },
        series: [
          { type: "line", symbol: "circle", symbolSize: 3, lineStyle: { width: 1 }, data: data.steps.filter((step) => step[1] > 0) },
          { type: "scatter", symbol: "diamond", symbolSize: 10, data: data.outliers, z: 3 },
        ],
      };
    },

    connect() {},
  };

  function tooltip([number, seconds, component]) {
    const box = document.createElement("div");
    box.textContent = `Step ${number}: ${words(seconds)}${component ? `, ${component.toLowerCase()}` : ""}`;
    return box;
  }

  function words(seconds) {
    if (seconds === 0) return "0";
    if (seconds < 1e-3) return `${digits(seconds * 1e6)} µs`;
    return seconds < 1 ? `${digits(seconds * 1e3)} ms` : `${digits(seconds)} s`;
  }

  function digits(value) {
    return String(Number(value.toPrecision(3)));
  }

  function roundedDown(value) {
    const size = 10 ** Math.floor(Math.log10(value));
    return [5, 2, 1].map((digit) => digit * size).find((bound) => bound <= value) ?? size;
  }

  function roundedUp(value) {
    const size = 10 ** Math.floor(Math.log10(value));
    return [1, 2, 5, 10].map((digit) => digit * size).find((bound) => bound >= value) ?? 10 * size;
  }
})();
