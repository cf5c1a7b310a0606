"use strict";
// The heatmap: GPUs above, cores below, on one time axis. ECharts gives axes and zoom; the cells are
// painted as one image, because 200 rows of a day are more rectangles than a page can carry.
(() => {
  const trainwatch = (window.trainwatch = window.trainwatch || { charts: {} });
  const NOTHING_SAMPLED = 255;

  trainwatch.charts.heatmap = {
    height(data) {
      const layout = layoutOf(data, 1000);
      return layout.bottom + 62;
    },

    option(data, look, width) {
      const layout = layoutOf(data, width);
      const end = data.start + data.columns * data.columnMilliseconds;
      const cells = paint(data, look.missing);
      const groups = layout.groups;
      const axis = { type: "time", min: data.start, max: end, axisTick: { show: false }, splitLine: { show: false } };
      return {
        useUTC: true,
        animation: false,
        textStyle: { fontFamily: look.font },
        grid: groups.map((group) => ({
          left: layout.left, right: 28, top: group.top, height: group.height, outerBoundsMode: "none",
        })),
        xAxis: groups.map((group, index) => ({
          ...axis,
          gridIndex: index,
          axisLine: { show: false },
          axisLabel: {
            show: index === groups.length - 1,
            color: look.soft,
            hideOverlap: true,
            formatter: (time) => timeOfDay(time, end - data.start),
          },
        })),
        yAxis: groups.map((group, index) => ({
          type: "category",
          gridIndex: index,
          inverse: true,
          data: data.rows.slice(group.first, group.first + group.count),
          axisLine: { show: false },
          axisTick: { show: false },
          splitLine: { show: false },
          axisLabel: { color: look.soft, fontSize: 11, interval: group.labelEvery - 1 },
        })),
        dataZoom: [
          {
            type: "slider", xAxisIndex: groups.map((_, index) => index), filterMode: "none", bottom: 4, height: 20,
            left: layout.left, right: 28, brushSelect: false, showDetail: false, borderColor: look.line,
            fillerColor: look.filler, handleSize: "120%",
          },
          {
            type: "inside", xAxisIndex: groups.map((_, index) => index), filterMode: "none",
            zoomOnMouseWheel: "ctrl", moveOnMouseMove: true, moveOnMouseWheel: false,
          },
        ],
        series: groups.map((group, index) => ({
          type: "custom",
          xAxisIndex: index,
          yAxisIndex: index,
          silent: true,
          clip: true,
          data: [[data.start, 0]],
          renderItem: (params, api) => image(params.coordSys, cells, group, api.coord([data.start, 0])[0], api.coord([end, 0])[0]),
        })),
      };
    },

    // Says below the pointer which device, when and how much.
    attach(chart, element) {
      const tip = document.createElement("div");
      tip.className = "tip";
      tip.hidden = true;
      element.append(tip);
      const zr = chart.getZr();
      zr.on("mousemove", (event) => {
        const text = textAt(chart, element.chartData, event.offsetX, event.offsetY);
        tip.hidden = !text;
        tip.textContent = text || "";
        const room = element.clientWidth - tip.offsetWidth - 4;
        tip.style.left = `${Math.max(0, Math.min(event.offsetX + 14, room))}px`;
        tip.style.top = `${event.offsetY + 16}px`;
      });
      zr.on("globalout", () => (tip.hidden = true));
    },

    connect: connectZoom,
  };

  // Rows are as high as fits a screen: GPUs at least 8 pixels, cores at least 3.
  function layoutOf(data, width) {
    const cores = data.rows.length - data.gpuRows;
    const heightOf = (count, room, least) => Math.max(least, Math.min(26, Math.floor(room / Math.max(count, 1))));
    let top = 8;
    const groups = [];
    for (const [first, count, room, least] of [[0, data.gpuRows, 200, 8], [data.gpuRows, cores, 420, 3]]) {
      if (count === 0) continue;
      const row = heightOf(count, room, least);
      groups.push({ first, count, top, height: row * count, labelEvery: niceStep(Math.ceil(14 / row)) });
      top += row * count + 10;
    }
    return { groups, bottom: top - 10, left: width < 500 ? 58 : 72 };
  }

  function niceStep(least) {
    return [1, 2, 4, 8, 16, 32, 64].find((step) => step >= least) || least;
  }

  // One pixel a cell.
  function paint(data, missing) {
    const canvas = document.createElement("canvas");
    canvas.width = Math.max(data.columns, 1);
    canvas.height = Math.max(data.rows.length, 1);
    const context = canvas.getContext("2d");
    const pixels = context.createImageData(canvas.width, canvas.height);
    const colours = data.colours.map(rgb);
    const none = rgb(missing);
    bytesOf(data).forEach((value, cell) => {
      const colour = value === NOTHING_SAMPLED ? none : between(colours, value / 100);
      pixels.data.set([...colour, 255], 4 * cell);
    });
    context.putImageData(pixels, 0, 0);
    return canvas;
  }

  // The part of the cells that the zoom shows, scaled to the pixels of the screen with sharp edges.
  function image(area, cells, group, left, right) {
    const density = window.devicePixelRatio || 1;
    const canvas = document.createElement("canvas");
    canvas.width = Math.max(1, Math.round(area.width * density));
    canvas.height = Math.max(1, Math.round(area.height * density));
    const context = canvas.getContext("2d");
    context.imageSmoothingEnabled = cells.width > (right - left) * density;
    context.drawImage(
      cells, 0, group.first, cells.width, group.count,
      (left - area.x) * density, 0, (right - left) * density, canvas.height,
    );
    return { type: "image", style: { image: canvas, x: area.x, y: area.y, width: area.width, height: area.height } };
  }

  function textAt(chart, data, x, y) {
    const groups = layoutOf(data, 1000).groups;
    for (let index = 0; index < groups.length; index++) {
      if (!chart.containPixel({ gridIndex: index }, [x, y])) continue;
      const [time, row] = chart.convertFromPixel({ gridIndex: index }, [x, y]);
      const column = Math.floor((time - data.start) / data.columnMilliseconds);
      const rowIndex = groups[index].first + row;
      if (column < 0 || column >= data.columns) return null;
      const value = bytesOf(data)[rowIndex * data.columns + column];
      const from = new Date(data.start + column * data.columnMilliseconds).toISOString().slice(11, 19);
      return `${data.rows[rowIndex]} · ${from} · ${value === NOTHING_SAMPLED ? "not sampled" : `${value} %`}`;
    }
    return null;
  }

  function bytesOf(data) {
    data.bytes = data.bytes || Uint8Array.from(atob(data.cells), (character) => character.charCodeAt(0));
    return data.bytes;
  }

  function connectZoom(chart, element) {
    const bar = document.querySelector(`[data-zoom-of="${CSS.escape(element.dataset.chart)}"]`);
    if (!bar) return;
    bar.hidden = false;
    bar.onclick = (event) => {
      const action = event.target.dataset.zoom;
      if (!action) return;
      const { start, end } = chart.getOption().dataZoom[0];
      const span = end - start;
      const middle = (start + end) / 2;
      const width = { in: Math.max(span / 2, 0.5), out: Math.min(span * 2, 100), all: 100 }[action] || span;
      const shift = { left: -span / 2, right: span / 2 }[action] || 0;
      const from = Math.max(0, Math.min(middle + shift - width / 2, 100 - width));
      chart.dispatchAction({ type: "dataZoom", start: from, end: from + width });
    };
  }

  function timeOfDay(time, span) {
    const iso = new Date(time).toISOString();
    return span > 36 * 3600e3 ? `${iso.slice(5, 10)} ${iso.slice(11, 16)}` : iso.slice(11, span > 2 * 3600e3 ? 16 : 19);
  }

  function rgb(colour) {
    const number = parseInt(colour.trim().slice(1), 16);
    return [number >> 16, (number >> 8) & 255, number & 255];
  }

  function between(colours, fraction) {
    const place = Math.min(Math.max(fraction, 0), 1) * (colours.length - 1);
    const index = Math.min(Math.floor(place), colours.length - 2);
    const weight = place - index;
    return [0, 1, 2].map((channel) => Math.round(colours[index][channel] * (1 - weight) + colours[index + 1][channel] * weight));
  }
})();
