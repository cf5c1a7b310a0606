"use strict";
// Distributions: one outline a series (a rank, a GPU), because their bounds may differ.
(() => {
  const stepscope = (window.stepscope = window.stepscope || { charts: {} });
  const SHOWN_AT_FIRST = 8;

  stepscope.charts.histogram = {
    height: () => 320,

    option(data, look, width) {
      const alone = data.series.length === 1;
      const unit = data.unit === "percent" ? { name: "%", factor: 1 } : unitFor(data.series);
      const last = Math.max(...Object.values(data.series[0].marks).map((value) => value || 0)) * unit.factor;
      return {
        animation: false,
        textStyle: { fontFamily: look.font },
        color: look.series,
        grid: { left: width < 500 ? 46 : 60, right: alone ? 32 : 16, top: alone ? 66 : 20, bottom: 46 },
        legend: { show: false, data: data.series.map((one) => one.name), selected: shownSeries(data) },
        tooltip: {
          trigger: "axis", axisPointer: { snap: false }, ...look.tooltip,
          formatter: (points) => tooltip(points, data, unit),
        },
        xAxis: {
          type: "value", scale: true, nameLocation: "middle", nameGap: 28,
          name: data.along,
          nameTextStyle: { color: look.soft },
          axisLabel: { color: look.soft, hideOverlap: true, formatter: `{value} ${unit.name}`, showMaxLabel: alone && data.unit !== "percent" ? false : undefined },
          axisLine: { lineStyle: { color: look.line } }, splitLine: { show: false },
          min: data.unit === "percent" ? 0 : undefined,
          max: data.unit === "percent" ? 100 : alone ? (extent) => Math.max(extent.max, 1.02 * last) : undefined,
        },
        yAxis: {
          type: "value", name: data.of, minInterval: 1, nameTextStyle: { color: look.soft, align: "right" },
          nameGap: 14, axisLabel: { color: look.soft }, splitLine: { lineStyle: { color: look.line } },
        },
        series: data.series.map((one) => ({
          name: one.name,
          type: "line",
          symbol: "none",
          lineStyle: { width: 1.5 },
          areaStyle: { opacity: alone ? 0.55 : 0.06 },
          data: outline(one, unit.factor),
          markLine: alone ? marks(one, unit, look) : undefined,
        })),
      };
    },

    connect(chart, element) {
      const series = element.chartData.series;
      stepscope.switches(chart, element, (series.length > SHOWN_AT_FIRST ? highestFirst(series) : series).map((one) => one.name));
    },
  };

  // The series shown at first: those with the highest middle (the slowest ranks), or all of a few.
  function shownSeries(data) {
    const highest = highestFirst(data.series).slice(0, SHOWN_AT_FIRST);
    return Object.fromEntries(data.series.map((one) => [one.name, highest.includes(one)]));
  }

  function highestFirst(series) {
    return [...series].sort((a, b) => b.middle - a.middle);
  }

  // Two points per bin, so that the outline has corners; zero at both ends.
  function outline(one, factor) {
    const edges = one.edges.map((edge) => edge * factor);
    const tops = one.counts.flatMap((count, bin) => [[edges[bin], count], [edges[bin + 1], count]]);
    return [[edges[0], 0], ...tops, [edges[edges.length - 1], 0]];
  }

  // Labels that would overlap are stacked.
  function marks(one, unit, look) {
    const known = Object.entries(one.marks).filter(([, value]) => value !== null).sort((a, b) => b[1] - a[1]);
    const near = 0.2 * (one.edges[one.edges.length - 1] - one.edges[0]);
    let level = 0;
    return {
      symbol: "none",
      silent: true,
      lineStyle: { color: look.text, type: "dashed", width: 1 },
      data: known.map(([name, value], index) => {
        level = index && known[index - 1][1] - value < near ? level + 1 : 0;
        return {
          xAxis: value * unit.factor,
          label: { formatter: `${name} ${digits(value * unit.factor)} ${unit.name}`, color: look.text, distance: 2, offset: [0, -14 * level] },
        };
      }),
    };
  }

  function tooltip(points, data, unit) {
    const box = document.createElement("div");
    const value = points[0].axisValue / unit.factor;
    for (const name of new Set(points.map((point) => point.seriesName))) {
      const one = data.series.find((candidate) => candidate.name === name);
      const bin = one.counts.findIndex((_, index) => one.edges[index] <= value && value < one.edges[index + 1]);
      if (bin < 0) continue;
      const [from, to] = [one.edges[bin], one.edges[bin + 1]].map((edge) => digits(edge * unit.factor));
      const line = document.createElement("div");
      line.textContent = `${name}: ${one.counts[bin]} × ${from} to ${to} ${unit.name}`;
      box.append(line);
    }
    return box;
  }

  function unitFor(series) {
    const typical = Math.max(...series.map((one) => one.middle || 0));
    if (typical < 1e-3) return { name: "µs", factor: 1e6 };
    return typical < 1 ? { name: "ms", factor: 1e3 } : { name: "s", factor: 1 };
  }

  function digits(value) {
    return value >= 100 ? value.toFixed(0) : value.toPrecision(3);
  }
})();
