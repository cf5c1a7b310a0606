// Draws `dashboard`: see dashboard_page.py.
"use strict";
const theme = dashboard.theme;
const VIRIDIS = ["#440154", "#482878", "#3e4989", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6ece58", "#b5de2b", "#fde725"];
const OTHERS = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00"];
const style = (element, rules) => Object.assign(element.style, rules);
style(document.body, { background: theme.page, color: theme.text, font: "13px sans-serif", margin: "8px", position: "relative" });

function clock(seconds) {
  const minutes = Math.round((seconds - dashboard.start) / 60) - 1;
  return `${minutes} min`;
}

function shown(value, unit) {
  if (typeof value !== "number") return value ?? "";
  const scaled = (steps, word) => {
    for (const [size, prefix] of steps) if (Math.abs(value) >= size) return `${+(value / size).toPrecision(3)} ${prefix}${word}`;
    return `${+value.toPrecision(3)} ${word}`;
  };
  const big = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
  if (unit === "percentunit") return `${+(100 * value).toFixed(1)} %`;
  if (unit === "s") return value >= 120 ? `${+(value / 60).toFixed(1)} min` : value >= 1 || value === 0 ? `${+value.toFixed(2)} s` : `${+(1000 * value).toPrecision(3)} ms`;
  if (unit === "currencyUSD") return `$${value.toFixed(2)}`;
  const words = { bytes: "B", Bps: "B/s", watt: "W", hertz: "Hz" };
  if (words[unit]) return scaled(big, words[unit]);
  if (unit === "celsius") return `${Math.round(value)} °C`;
  return `${+value.toPrecision(5)}`;
}

const text = { color: theme.text, fontSize: 11 };
const axis = { axisLabel: text, axisLine: { lineStyle: { color: theme.line } }, splitLine: { lineStyle: { color: theme.line } } };

function chart(box, options) {
  const drawn = echarts.init(box, null, { renderer: "canvas" });
  drawn.setOption({ animation: false, textStyle: text, ...options });
}

function drawLines(box, panel) {
  const grid = { left: 62, right: 12, top: 8, bottom: 54 };
  const colour = (one, index) => (one.colour === "text" ? theme.text : one.colour ?? OTHERS[index % OTHERS.length]);
  chart(box, {
    grid,
    legend: { bottom: 0, textStyle: text, type: "scroll", itemHeight: 3, itemWidth: 14 },
    xAxis: { type: "value", min: dashboard.start, max: dashboard.end, ...axis, axisLabel: { ...text, formatter: clock }, splitLine: { show: false } },
    yAxis: { type: "value", max: panel.highest ?? undefined, ...axis, axisLabel: { ...text, formatter: (value) => shown(value, panel.unit) } },
    series: panel.series.map((one, index) => {
      const limit = one.name.startsWith("fires ");
      return {
        name: one.name, type: "line", showSymbol: false, data: one.points,
        stack: panel.stacked && !limit ? "all" : undefined, areaStyle: panel.stacked && !limit ? { opacity: 0.6 } : undefined,
        lineStyle: { width: 1.2, type: limit ? "dashed" : "solid", color: colour(one, index) }, itemStyle: { color: colour(one, index) },
      };
    }),
  });
}

function drawHeatmap(box, panel) {
  const times = [...new Set(panel.rows.flatMap((row) => row.points.map((point) => point[0])))].sort((a, b) => a - b);
  const across = new Map(times.map((time, index) => [time, index]));
  const data = [];
  let most = panel.top ?? 0;
  panel.rows.forEach((row, y) => row.points.forEach(([time, value]) => {
    if (value > 1e-9) data.push([across.get(time), y, value]);
    if (!panel.top && value > most) most = value;
  }));
  chart(box, {
    grid: { left: 74, right: 70, top: 8, bottom: 26 },
    xAxis: { type: "category", data: times.map(clock), ...axis, axisLabel: { ...text, interval: Math.floor(times.length / 8) } },
    yAxis: { type: "category", inverse: true, data: panel.rows.map((row) => (panel.top ? row.name : "≤ " + shown(row.name === "+Inf" ? "∞" : +row.name, panel.axis))), ...axis, axisLabel: { ...text, fontSize: 10, interval: Math.floor(panel.rows.length / (panel.top ? 50 : 15)) } },
    visualMap: { min: 0, max: most || 1, calculable: false, right: 0, top: "middle", textStyle: text, inRange: { color: VIRIDIS }, formatter: (value) => shown(value, panel.top ? "percentunit" : "short") },
    series: [{ type: "heatmap", data, progressive: 0 }],
  });
}

function drawBars(box, panel) {
  const rows = panel.series.map((one, index) => [one.name, one.points.at(-1)[1], one.colour ?? "#0072B2"]);
  const most = panel.highest ?? Math.max(...rows.map((row) => row[1]), 1e-9);
  for (const [name, value, colour] of rows) {
    const line = box.appendChild(document.createElement("div"));
    style(line, { display: "flex", alignItems: "center", height: `${Math.min(26, (box.clientHeight - 6) / rows.length)}px` });
    line.innerHTML = "<span></span><span></span><span></span>";
    const [label, bar, number] = line.children;
    label.textContent = name;
    number.textContent = shown(value, panel.unit);
    style(label, { width: "130px", overflow: "hidden", whiteSpace: "nowrap" });
    style(bar, { background: colour, height: "60%", width: `${(60 * value) / most}%`, margin: "0 8px 0 0" });
  }
}

function drawColumns(box, panel) {
  const names = Object.keys(panel.columns);
  const places = [...new Set(names.flatMap((name) => Object.keys(panel.columns[name])))].sort((a, b) => a - b);
  chart(box, {
    grid: { left: 62, right: 12, top: 8, bottom: 54 },
    legend: { bottom: 0, textStyle: text, itemHeight: 8, itemWidth: 12 },
    color: OTHERS.concat(["#B9A44C", "#999999"]),
    xAxis: { type: "category", data: places, ...axis },
    yAxis: { type: "value", ...axis, axisLabel: { ...text, formatter: (value) => shown(value, panel.unit) } },
    series: names.map((name) => ({ name, type: "bar", data: places.map((place) => panel.columns[name][place] ?? 0) })),
  });
}

function drawTable(box, panel) {
  const table = box.appendChild(document.createElement("table"));
  style(table, { borderCollapse: "collapse", width: "100%", fontSize: "12px" });
  const line = (cells, tag) => {
    const row = table.insertRow();
    for (const [value, colour] of cells) {
      const cell = row.appendChild(document.createElement(tag));
      cell.textContent = typeof value === "number" ? shown(value, panel.unit) : value;
      style(cell, { textAlign: "left", padding: "3px 8px", borderBottom: `1px solid ${theme.line}`, color: colour === "text" ? theme.text : colour });
    }
  };
  line(panel.headings.map((heading) => [heading, "text"]), "th");
  panel.cells.forEach((cells) => line(cells, "td"));
}

function drawStat(box, panel) {
  style(box, { display: "flex", gap: "24px", alignItems: "center", justifyContent: "center", fontSize: "26px", textAlign: "center" });
  for (const one of panel.series) {
    const value = box.appendChild(document.createElement("div"));
    value.textContent = shown(one.points.at(-1)[1], panel.unit);
    if (one.name && one.name !== "__auto") {
      const label = value.appendChild(document.createElement("div"));
      label.textContent = one.name;
      style(label, { fontSize: "12px" });
    }
  }
}

const DRAW = { timeseries: drawLines, heatmap: drawHeatmap, bargauge: drawBars, barchart: drawColumns, table: drawTable, stat: drawStat };
const column = (document.documentElement.clientWidth - 16) / 24;
for (const panel of dashboard.panels) {
  const { x, y, w, h } = panel.place;
  const frame = document.body.appendChild(document.createElement("section"));
  const heading = frame.appendChild(document.createElement("div"));
  heading.textContent = panel.title;
  style(heading, { font: "600 13px sans-serif", padding: "6px 8px", height: "16px" });
  style(frame, { position: "absolute", left: `${8 + x * column}px`, top: `${8 + y * dashboard.row}px`, width: `${w * column - 6}px`, height: `${h * dashboard.row - 6}px`, overflow: "hidden", boxSizing: "border-box" });
  if (panel.type === "row") continue;
  style(frame, { background: theme.panel, border: `1px solid ${theme.line}` });
  const box = frame.appendChild(document.createElement("div"));
  style(box, { height: `${h * dashboard.row - 40}px`, padding: "0 6px" });
  DRAW[panel.type](box, panel);
}
document.body.dataset.drawn = dashboard.panels.length;
