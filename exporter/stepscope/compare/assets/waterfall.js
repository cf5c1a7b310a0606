"use strict";
// From A's total to B's: each bar starts at the end of the previous one. Horizontal bars leave room for names.
(() => {
  const stepscope = (window.stepscope = window.stepscope || { charts: {} });
  const BAR = 30; // CSS pixels of a row

  stepscope.charts.waterfall = {
    height: (data) => 44 + BAR * data.bars.length,

    option(data, look, width) {
      const names = width < 560 ? 108 : 190;
      const style = getComputedStyle(document.documentElement);
      const colours = { total: look.soft, less: style.getPropertyValue("--good").trim(), more: style.getPropertyValue("--alert").trim() };
      const top = Math.max(...data.bars.map((bar) => Math.max(bar.from, bar.to)));
      const low = Math.min(0, ...data.bars.map((bar) => Math.min(bar.from, bar.to)));
      const unit = unitFor(Math.max(top, -low));
      return {
        animation: false,
        textStyle: { fontFamily: look.font },
        grid: { left: names, right: 92, top: 6, bottom: 34 },
        tooltip: {
          trigger: "item", confine: true, backgroundColor: look.text, borderWidth: 0, padding: [4, 8],
          textStyle: { color: look.page, fontSize: 13 },
          formatter: (point) => tooltip(data.bars[point.dataIndex]),
        },
        xAxis: {
          type: "value", min: low < 0 ? undefined : 0, splitNumber: width < 560 ? 2 : 6,
          axisLabel: { color: look.soft, hideOverlap: true, formatter: (value) => `${trim(value)} ${unit.name}` },
          splitLine: { lineStyle: { color: look.line } },
        },
        yAxis: {
          type: "category", inverse: true, data: data.bars.map((bar) => bar.name), axisTick: { show: false },
          axisLine: { lineStyle: { color: look.line } },
          axisLabel: { color: look.text, width: names - 12, overflow: "break", lineHeight: 14, interval: 0 },
        },
        series: [{
          type: "custom",
          clip: false,
          encode: { x: [1, 2], y: 0 },
          data: data.bars.map((bar, index) => [index, bar.from * unit.factor, bar.to * unit.factor]),
          renderItem: (_, api) => bars(api, data.bars, colours, look),
        }],
      };
    },

    connect() {},
  };

  // A bar, the thin line to the bar below, and the amount at the right end.
  function bars(api, all, colours, look) {
    const index = api.value(0);
    const bar = all[index];
    const [from, y] = api.coord([api.value(1), index]);
    const [to] = api.coord([api.value(2), index]);
    const height = Math.min(20, 0.66 * api.size([0, 1])[1]);
    const left = Math.min(from, to), right = Math.max(from, to);
    const children = [
      { type: "rect", shape: { x: left, y: y - height / 2, width: Math.max(right - left, 1.5), height, r: 2 }, style: { fill: colours[bar.kind] } },
      { type: "text", style: { x: right + 6, y, text: bar.label, fill: look.text, font: `13px ${look.font}`, textVerticalAlign: "middle" } },
    ];
    if (index < all.length - 1) {
      children.push({ type: "line", shape: { x1: to, x2: to, y1: y + height / 2, y2: y + api.size([0, 1])[1] - height / 2 }, style: { stroke: look.soft, lineWidth: 1, lineDash: [2, 2] } });
    }
    return { type: "group", children };
  }

  function tooltip(bar) {
    const line = document.createElement("div");
    line.textContent = `${bar.name}: ${bar.label}`;
    return line;
  }

  function unitFor(seconds) {
    if (seconds < 1e-3) return { name: "µs", factor: 1e6 };
    if (seconds < 1) return { name: "ms", factor: 1e3 };
    if (seconds < 600) return { name: "s", factor: 1 };
    return seconds < 36000 ? { name: "min", factor: 1 / 60 } : { name: "h", factor: 1 / 3600 };
  }

  function trim(value) {
    return String(Number(value.toPrecision(3)));
  }
})();
