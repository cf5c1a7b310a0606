"use strict";
// The heatmap: bands of rules, phases and bottlenecks above, then GPUs, then cores, on one time axis. ECharts gives axes
// and zoom; the cells are painted as images, because 200 rows of a day are more rectangles than a page can carry.
(() => {
  const stepscope = (window.stepscope = window.stepscope || { charts: {} });
  const STRIP = 14; // pixels
  const BARS = 20; // levels of a bar in the strip of phases

  stepscope.charts.heatmap = {
    height(data) {
      return layoutOf(data, 1000).bottom + 62;
    },

    option(data, look, width) {
      const layout = layoutOf(data, width);
      const end = data.start + data.columns * data.columnMilliseconds;
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
            formatter: (time) => stepscope.timeOfDay(time, end - data.start),
          },
        })),
        yAxis: groups.map((group, index) => ({
          type: "category",
          gridIndex: index,
          inverse: true,
          data: group.names,
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
        series: groups.map((group, index) => {
          const painted = group.paint && group.paint(look);
          return {
            type: "custom",
            xAxisIndex: index,
            yAxisIndex: index,
            silent: true,
            clip: true,
            data: [[data.start, 0]],
            renderItem: (params, api) => {
              const across = (time) => api.coord([time, 0])[0];
              if (group.spans) return { type: "group", children: spansOf(params.coordSys, group, across, look) };
              const picture = image(params.coordSys, painted, group, across(group.start), across(group.end));
              if (!group.marks) return picture;
              return { type: "group", children: [picture, ...stepMarks(params.coordSys, group.marks, across, look)] };
            },
          };
        }),
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

  // A group is a band with its own rows: what it paints, from when to when, and what a place in it says.
  // All rows fit a screen if they can: GPUs have at least 6 pixels, cores at least 2.
  function layoutOf(data, width) {
    const own = { start: data.start, end: data.start + data.columns * data.columnMilliseconds };
    const strips = [...data.bands.map((one) => band(one, own, data)), ...(data.timeline ? [phases(data)] : []), ...data.starved.map((one) => bottleneck(one, own, data))];
    const cores = data.rows.length - data.gpuRows;
    const heightOf = (count, room, least) => Math.max(least, Math.min(26, Math.floor(room / Math.max(count, 1))));
    let top = 8;
    const groups = [];
    for (const strip of strips) {
      groups.push({ ...strip, top, height: STRIP, labelEvery: 1, first: 0 });
      top += STRIP + 4;
    }
    top += strips.length ? 4 : 0;
    for (const [first, count, room, least] of [[0, data.gpuRows, 120, 6], [data.gpuRows, cores, 200, 2]]) {
      if (count === 0) continue;
      const row = heightOf(count, room, least);
      groups.push({ ...devices(data, own, first, count), top, height: row * count, labelEvery: niceStep(Math.ceil(14 / row)) });
      top += row * count + 10;
    }
    return { groups, bottom: top - 10, left: width < 500 ? 66 : 76 };
  }

  function niceStep(least) {
    return [1, 2, 4, 8, 16, 32, 64].find((step) => step >= least) || least;
  }

  // One pixel a cell.
  function devices(data, own, first, count) {
    const said = (row, column) => {
      const value = stepscope.bytesOf(data)[(first + row) * data.columns + column];
      return value === stepscope.NOTHING_SAMPLED ? "not sampled" : `${value} %`;
    };
    return {
      ...own, names: data.rows.slice(first, first + count), columns: data.columns, said,
      paint(look) {
        const colours = data.colours.map(rgb);
        const none = rgb(look.missing);
        const cells = stepscope.bytesOf(data);
        return canvasOf(data.columns, count, (column, row) => {
          const value = cells[(first + row) * data.columns + column];
          return value === stepscope.NOTHING_SAMPLED ? none : between(colours, value / 100);
        });
      },
    };
  }

  // A stacked bar of the phases' shares per column; the rest is the time between steps.
  function phases(data) {
    const line = data.timeline;
    const shares = line.phases.map((phase) => stepscope.bytesOf(phase));
    const columns = shares[0].length;
    return {
      start: line.start, end: line.start + columns * line.columnMilliseconds, names: ["Steps"], columns, marks: line.marks,
      said: (_, column) => line.phases.map((phase, index) => `${phase.name.toLowerCase()} ${shares[index][column]} %`).join(", "),
      paint(look) {
        const track = rgb(look.track);
        const colours = line.phases.map((phase) => rgb(look.of(phase.phase) || look.of("train")));
        return canvasOf(columns, BARS, (column, row) => {
          let left = (100 * (BARS - row - 0.5)) / BARS;
          for (let index = 0; index < shares.length; index++) {
            left -= shares[index][column];
            if (left < 0) return colours[index];
          }
          return track;
        });
      },
    };
  }

  // When a rule held: shaded, with the rule's name where there is room.
  function band(one, own, data) {
    const length = (own.end - own.start) / data.columns;
    return {
      ...own, names: [""], columns: data.columns, spans: one.spans, rule: one.name,
      said: (_, column) => {
        const [from, to] = [own.start + column * length, own.start + (column + 1) * length];
        const span = one.spans.find(([start, end]) => start < to && end >= from);
        return `${one.name} ${span ? `held on ${span[2]}` : "did not hold"}`;
      },
    };
  }

  function spansOf(area, group, across, look) {
    const right = area.x + area.width;
    const shown = group.spans.map(([start, end]) => [Math.max(across(start), area.x), Math.min(Math.max(across(end), across(start) + 2), right)]);
    const seen = shown.filter(([left, end]) => left < right && end > area.x);
    const rectangle = (x, width, fill) => ({ type: "rect", shape: { x, y: area.y, width, height: area.height }, style: { fill } });
    const room = seen.find(([left, end]) => end - left > 7 * group.rule.length);
    const [x, align] = room ? [room[0] + 4, "left"] : seen.length && seen[0][0] - area.x > 7 * group.rule.length ? [seen[0][0] - 4, "right"] : [seen.length ? seen[seen.length - 1][1] + 4 : area.x + 4, "left"];
    return [
      rectangle(area.x, area.width, look.track),
      ...seen.map(([left, end]) => rectangle(left, end - left, look.of("band"))),
      { type: "text", style: { text: group.rule, x, y: area.y + area.height / 2, align, verticalAlign: "middle", fill: room ? "#ffffff" : look.soft, fontSize: 11 } },
    ];
  }

  function bottleneck(one, own, data) {
    const shares = stepscope.bytesOf(one);
    return {
      ...own, names: [one.name], columns: data.columns,
      said: (_, column) => (shares[column] === stepscope.NOTHING_SAMPLED ? "not sampled" : `${shares[column]} % of the snapshots`),
      paint(look) {
        const ends = [rgb(look.track), rgb(look.of(one.colour))];
        return canvasOf(data.columns, 1, (column) => between(ends, shares[column] === stepscope.NOTHING_SAMPLED ? 0 : shares[column] / 100));
      },
    };
  }

  function canvasOf(columns, rows, colourAt) {
    const canvas = document.createElement("canvas");
    canvas.width = Math.max(columns, 1);
    canvas.height = Math.max(rows, 1);
    const context = canvas.getContext("2d");
    const pixels = context.createImageData(canvas.width, canvas.height);
    for (let row = 0; row < rows; row++) {
      for (let column = 0; column < columns; column++) {
        const [red, green, blue] = colourAt(column, row);
        const place = 4 * (row * columns + column);
        pixels.data[place] = red;
        pixels.data[place + 1] = green;
        pixels.data[place + 2] = blue;
        pixels.data[place + 3] = 255;
      }
    }
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
    context.drawImage(cells, (left - area.x) * density, 0, (right - left) * density, canvas.height);
    return { type: "image", style: { image: canvas, x: area.x, y: area.y, width: area.width, height: area.height } };
  }

  // A line where a step began, with its number, as many as there is room for.
  function stepMarks(area, marks, across, look) {
    const seen = marks.map(([number, start]) => [number, across(start)]).filter(([, x]) => x >= area.x && x <= area.x + area.width - 8);
    const every = Math.max(1, Math.ceil((seen.length * 64) / Math.max(area.width, 1)));
    return seen.filter((_, index) => index % every === 0).flatMap(([number, x]) => [
      { type: "line", shape: { x1: x, y1: area.y, x2: x, y2: area.y + area.height }, style: { stroke: look.page, lineWidth: 1 } },
      { type: "text", style: { text: String(number), x: x + 3, y: area.y + area.height / 2, verticalAlign: "middle", fill: "#ffffff", stroke: "#00000099", lineWidth: 2, fontSize: 10 } },
    ]);
  }

  function textAt(chart, data, x, y) {
    const groups = layoutOf(data, 1000).groups;
    for (let index = 0; index < groups.length; index++) {
      if (!chart.containPixel({ gridIndex: index }, [x, y])) continue;
      const [time, row] = chart.convertFromPixel({ gridIndex: index }, [x, y]);
      const group = groups[index];
      const columnMilliseconds = (group.end - group.start) / group.columns;
      const column = Math.floor((time - group.start) / columnMilliseconds);
      if (column < 0 || column >= group.columns) return null;
      const from = new Date(group.start + column * columnMilliseconds).toISOString().slice(11, 19);
      return `${group.names[row]} · ${from} · ${group.said(row, column)}`;
    }
    return null;
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
