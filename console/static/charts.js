// SPDX-License-Identifier: Apache-2.0
// Draws the charts of figures over time with uPlot, out of the table that is behind each of them: whoever cannot see or
// use a chart has all of it there. A chart is a slider to the keyboard and to screen readers: arrows, Home, End and Page
// Up/Down move over its points, and what is there is said. The figures are fetched anew while nobody reads the table.
"use strict";
(() => {
  const RENEW_MILLISECONDS = 30000;
  const HEIGHT = 190;
  const LEAST_WIDTH = 220;
  const plots = new Map();

  function read(table) {
    const rows = [...table.tBodies[0].rows];
    const apart = Number(table.dataset.seconds) * 2.5;
    const times = [];
    const columns = [...rows[0].cells].slice(1).map(() => []);
    for (const row of rows) {
      const time = Number(row.cells[0].dataset.time);
      if (times.length && time - times[times.length - 1] > apart) {
        times.push(times[times.length - 1] + apart / 2.5); // a line across would be made up
        columns.forEach((column) => column.push(null));
      }
      times.push(time);
      columns.forEach((column, place) => {
        const text = row.cells[place + 1].textContent;
        column.push(text === "–" ? null : Number(text));
      });
    }
    return { times, columns, names: [...table.tHead.rows[0].cells].slice(1).map((cell) => cell.textContent) };
  }

  function colours() {
    const style = getComputedStyle(document.documentElement);
    const of = (name) => style.getPropertyValue(name).trim();
    return { text: of("--soft"), line: of("--line"), series: [of("--series-1"), of("--series-2")] };
  }

  function moment(seconds, times) {
    const iso = new Date(seconds * 1000).toISOString();
    const length = times[times.length - 1] - times[0];
    if (length > 2 * 86400) return iso.slice(5, 10);
    return length < 300 ? iso.slice(11, 19) : iso.slice(11, 16);
  }

  function draw(figure) {
    const table = figure.closest(".history").querySelector("table");
    if (!table) return;
    const { times, columns, names } = read(table);
    const chosen = figure.dataset.columns.split(",").map(Number);
    const shown = chosen.map((place) => columns[place]);
    const { text, line, series } = colours();
    const axis = { font: "12px system-ui, sans-serif", stroke: text, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 } };
    const most = Number(figure.dataset.most) || 0;
    const options = {
      width: Math.max(LEAST_WIDTH, figure.clientWidth),
      height: HEIGHT,
      padding: [null, 26, null, null], // half of the label of a point at the end
      legend: { show: false },
      cursor: { drag: { x: false, y: false }, points: { size: 7 } },
      scales: { y: { range: (_, low, high) => [0, Math.max(most, high || 0) * 1.05 || 1] } },
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"), // as every time of the console
      axes: [{ ...axis, values: (_, marks) => marks.map((mark) => moment(mark, times)), size: 32 }, { ...axis, size: 50 }],
      series: [
        {},
        ...shown.map((_, place) => ({
          stroke: series[place],
          width: place ? 1.5 : 2,
          dash: place ? [6, 4] : undefined,
          points: { show: times.length < 3 },
        })),
      ],
      hooks: { setCursor: [(plot) => tell(figure, plot.cursor.idx)] },
    };
    forget(figure);
    const place = document.createElement("div");
    place.className = "plot";
    place.tabIndex = 0;
    place.setAttribute("role", "slider");
    place.setAttribute("aria-label", `${figure.dataset.title}; the same figures are in the table below`);
    place.setAttribute("aria-valuemin", "0");
    place.setAttribute("aria-valuemax", String(times.length - 1));
    const reading = document.createElement("p");
    reading.className = "reading";
    figure.append(place, reading);
    const plot = new uPlot(options, [times, ...shown], place);
    const state = { plot, place, reading, times, shown, names: chosen.map((each) => names[each]), at: times.length - 1 };
    plots.set(figure, state);
    place.addEventListener("keydown", (event) => step(state, figure, event));
    tell(figure, null);
  }

  function forget(figure) {
    const before = plots.get(figure);
    if (!before) return;
    before.plot.destroy();
    before.place.remove();
    before.reading.remove();
    plots.delete(figure);
  }

  // what stands at a point, or, where none is chosen, at the newest one
  function tell(figure, index) {
    const state = plots.get(figure);
    if (!state) return;
    const at = index === null || index === undefined ? state.times.length - 1 : index;
    state.at = at;
    const when = new Date(state.times[at] * 1000).toISOString().replace("T", " ").slice(0, 19);
    const figures = state.shown.map((column, place) => {
      const [name, unit] = state.names[place].split(", ");
      return `${name} ${column[at] === null ? "not known" : `${column[at]} ${unit || ""}`.trim()}`;
    });
    const said = `${when} UTC: ${figures.join(", ")}`;
    state.reading.textContent = said;
    state.place.setAttribute("aria-valuenow", String(at));
    state.place.setAttribute("aria-valuetext", said);
  }

  function step(state, figure, event) {
    const last = state.times.length - 1;
    const page = Math.max(1, Math.round(last / 10));
    const to = {
      ArrowLeft: state.at - 1,
      ArrowDown: state.at - 1,
      ArrowRight: state.at + 1,
      ArrowUp: state.at + 1,
      PageDown: state.at - page,
      PageUp: state.at + page,
      Home: 0,
      End: last,
    }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const at = Math.min(last, Math.max(0, to));
    const left = state.plot.valToPos(state.times[at], "x");
    const first = state.shown[0][at];
    state.plot.setCursor({ left, top: first === null ? 0 : state.plot.valToPos(first, "y") }, false);
    tell(figure, at);
  }

  function drawAll(root) {
    root.querySelectorAll("figure.chart").forEach(draw);
    for (const figure of plots.keys()) if (!figure.isConnected) plots.delete(figure);
  }

  function resize() {
    for (const [figure, { plot }] of plots) {
      plot.setSize({ width: Math.max(LEAST_WIDTH, figure.clientWidth), height: HEIGHT });
    }
  }

  function isBeingRead(history) {
    return history.querySelector("details[open]") || history.contains(document.activeElement);
  }

  document.addEventListener("DOMContentLoaded", () => {
    drawAll(document);
    window.setInterval(() => {
      if (document.hidden) return;
      document.querySelectorAll(".history[hx-get]").forEach((history) => {
        if (isBeingRead(history)) return;
        const chosen = history.querySelector("a[aria-current]");
        const address = chosen ? chosen.getAttribute("href") : history.getAttribute("hx-get");
        htmx.ajax("GET", address, { target: history, swap: "innerHTML" });
      });
    }, RENEW_MILLISECONDS);
  });
  document.addEventListener("htmx:afterSettle", (event) => {
    if (event.target.classList?.contains("history")) drawAll(event.target);
  });
  window.addEventListener("resize", resize);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawAll(document));
})();
