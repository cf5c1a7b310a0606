"use strict";
// Percentages over time, a line a series.
(() => {
  const stepscope = (window.stepscope = window.stepscope || { charts: {} });

  stepscope.charts.lines = {
    height: () => 260,

    option(data, look, width) {
      const timeAt = (column) => data.start + column * data.columnMilliseconds;
      const end = timeAt(data.columns);
      return {
        useUTC: true,
        animation: false,
        textStyle: { fontFamily: look.font },
        color: look.series,
        grid: { left: width < 500 ? 46 : 60, right: 28, top: 20, bottom: 30 },
        legend: { show: false, data: data.series.map((one) => one.name), selected: {} },
        tooltip: {
          trigger: "axis", ...look.tooltip,
          formatter: tooltip,
        },
        xAxis: {
          type: "time", min: data.start, max: end, axisLine: { lineStyle: { color: look.line } }, splitLine: { show: false },
          axisLabel: { color: look.soft, hideOverlap: true, formatter: (time) => stepscope.timeOfDay(time, end - data.start) },
        },
        yAxis: {
          type: "value", min: 0, max: 100, axisLabel: { color: look.soft, formatter: "{value} %" },
          splitLine: { lineStyle: { color: look.line } },
        },
        series: data.series.map((one) => ({
          name: one.name,
          type: "line",
          symbol: "none",
          lineStyle: { width: 1.5 },
          data: [...stepscope.bytesOf(one)].map((value, column) => [timeAt(column + 0.5), value === stepscope.NOTHING_SAMPLED ? null : value]),
        })),
      };
    },

    connect(chart, element) {
      stepscope.switches(chart, element, element.chartData.series.map((one) => one.name));
    },
  };

  function tooltip(points) {
    const box = document.createElement("div");
    const said = [new Date(points[0].value[0]).toISOString().slice(11, 19), ...points.map((point) => `${point.seriesName}: ${point.value[1] ?? "–"} %`)];
    for (const words of said) box.append(Object.assign(document.createElement("div"), { textContent: words }));
    return box;
  }
})();
