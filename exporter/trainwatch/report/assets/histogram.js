"use strict";
// Step durations: one outline a rank, because the ranks' bounds may differ; ranks are switched on and
// off with checkboxes, which the keyboard and a screen reader reach (a legend on canvas they do not).
(() => {
  const trainwatch = (window.trainwatch = window.trainwatch || { charts: {} });
  const SHOWN_AT_FIRST = 8;

  trainwatch.charts.histogram = {
    height: () => 320,

    option(data, look, width) {
      const alone = data.ranks.length === 1;
      const unit = unitFor(data.ranks);
      const shown = shownRanks(data);
      return {
        animation: false,
        textStyle: { fontFamily: look.font },
        color: look.series,
        grid: { left: width < 500 ? 46 : 60, right: alone ? 32 : 16, top: alone ? 66 : 20, bottom: 46 },
        legend: { show: false, data: data.ranks.map((rank) => rank.name), selected: shown },
        tooltip: {
          trigger: "axis", confine: true, axisPointer: { snap: false }, backgroundColor: look.text, borderWidth: 0, padding: [4, 8],
          textStyle: { color: look.page, fontSize: 13 },
          formatter: (points) => tooltip(points, data, unit),
        },
        xAxis: {
          type: "value", scale: true, name: `${unit.words} a step`, nameLocation: "middle", nameGap: 28,
          nameTextStyle: { color: look.soft }, 
          axisLabel: { color: look.soft, hideOverlap: true, showMaxLabel: alone ? false : undefined },
          axisLine: { lineStyle: { color: look.line } }, splitLine: { show: false },
          max: alone ? (extent) => Math.max(extent.max, 1.02 * data.ranks[0].marks.p99 * unit.factor) : undefined,
        },
        yAxis: {
          type: "value", name: "steps", minInterval: 1, nameTextStyle: { color: look.soft, align: "right" },
          nameGap: 14, axisLabel: { color: look.soft }, splitLine: { lineStyle: { color: look.line } },
        },
        series: data.ranks.map((rank) => ({
          name: rank.name,
          type: "line",
          symbol: "none",
          lineStyle: { width: 1.5 },
          areaStyle: { opacity: alone ? 0.55 : 0.12 },
          data: outline(rank, unit.factor),
          markLine: alone ? marks(rank, unit.factor, look) : undefined,
        })),
      };
    },

    connect: connectRanks,
  };

  // The ranks first shown: all of a few, else those with the slowest median step.
  function shownRanks(data) {
    const slowest = slowestFirst(data.ranks).slice(0, SHOWN_AT_FIRST);
    return Object.fromEntries(data.ranks.map((rank) => [rank.name, slowest.includes(rank)]));
  }

  function slowestFirst(ranks) {
    return [...ranks].sort((a, b) => b.marks.p50 - a.marks.p50);
  }

  // Two points a bin, so that the outline has corners; zero at both ends.
  function outline(rank, factor) {
    const edges = rank.edges.map((edge) => edge * factor);
    const tops = rank.counts.flatMap((count, bin) => [[edges[bin], count], [edges[bin + 1], count]]);
    return [[edges[0], 0], ...tops, [edges[edges.length - 1], 0]];
  }

  function marks(rank, factor, look) {
    const rows = { mean: 3, p50: 2, p95: 1, p99: 0 };
    return {
      symbol: "none",
      silent: true,
      lineStyle: { color: look.text, type: "dashed", width: 1 },
      data: Object.entries(rank.marks).filter(([, value]) => value !== null).map(([name, value]) => ({
        xAxis: value * factor,
        label: { formatter: `${name} ${digits(value * factor)}`, color: look.text, distance: 2, offset: [0, -14 * rows[name]] },
      })),
    };
  }

  function tooltip(points, data, unit) {
    const box = document.createElement("div");
    const value = points[0].axisValue / unit.factor;
    for (const name of new Set(points.map((point) => point.seriesName))) {
      const rank = data.ranks.find((candidate) => candidate.name === name);
      const bin = rank.counts.findIndex((_, index) => rank.edges[index] <= value && value < rank.edges[index + 1]);
      if (bin < 0) continue;
      const [from, to] = [rank.edges[bin], rank.edges[bin + 1]].map((edge) => digits(edge * unit.factor));
      const line = document.createElement("div");
      line.textContent = `${name}: ${rank.counts[bin]} × ${from} to ${to} ${unit.name}`;
      box.append(line);
    }
    return box;
  }

  function connectRanks(chart, element) {
    const box = document.querySelector(`[data-ranks-of="${CSS.escape(element.dataset.chart)}"]`);
    const ranks = element.chartData.ranks;
    if (!box || ranks.length < 2) return;
    box.hidden = false;
    box.querySelectorAll("label").forEach((label) => label.remove());
    const shown = chart.getOption().legend[0].selected;
    for (const rank of ranks.length > SHOWN_AT_FIRST ? slowestFirst(ranks) : ranks) {
      const label = document.createElement("label");
      const input = document.createElement("input");
      input.type = "checkbox";
      input.checked = shown[rank.name];
      input.onchange = () => chart.dispatchAction({ type: input.checked ? "legendSelect" : "legendUnSelect", name: rank.name });
      label.append(input, ` ${rank.name}`);
      box.append(label);
    }
  }

  function unitFor(ranks) {
    const typical = Math.max(...ranks.map((rank) => rank.marks.p50 || 0));
    if (typical < 1e-3) return { name: "µs", words: "microseconds", factor: 1e6 };
    return typical < 1 ? { name: "ms", words: "milliseconds", factor: 1e3 } : { name: "s", words: "seconds", factor: 1 };
  }

  function digits(value) {
    return value >= 100 ? value.toFixed(0) : value.toPrecision(3);
  }
})();
