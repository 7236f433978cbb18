// Steps through the recorded frames of a figure, on the page. A <div class="stepper" data-figure="fig-x"> takes its
// numbers from the <script id="numbers-fig-x"> beside it: the same numbers from which the figure is drawn.
"use strict";

const STEPPER_COLORS = ["#0173b2", "#de8f05", "#029e73"]; // as in the figures
const SVG = "http://www.w3.org/2000/svg";

function svg(parent, tag, attributes, text) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return parent.appendChild(element);
}

function mark(parent, kind, x, y, color) { // circle, square or triangle, as in the figures
  const style = { fill: color, stroke: "#222", "stroke-width": 0.8 };
  if (kind === 0) svg(parent, "circle", { cx: x, cy: y, r: 4.5, ...style });
  else if (kind === 1) svg(parent, "rect", { x: x - 4, y: y - 4, width: 8, height: 8, ...style });
  else svg(parent, "path", { d: `M${x} ${y - 5} l5 9 h-10 z`, ...style });
}

function drawFreeValues(canvas, n, k) {
  canvas.replaceChildren();
  const size = 230, reach = 1.08 * Math.max(...n.values.flat(2).map(Math.abs));
  const place = ([x, y]) => [size / 2 + (x / reach) * size / 2, size / 2 - (y / reach) * size / 2];
  const line = (a, b, style) => svg(canvas, "line", { x1: a[0], y1: a[1], x2: b[0], y2: b[1], ...style });
  svg(canvas, "rect", { x: 0.5, y: 0.5, width: size, height: size, fill: "none", stroke: "#222" });
  n.directions.forEach((d, c) => {
    const length = Math.hypot(...d);
    line(place([0, 0]), place(d.map((v) => (v / length) * reach)), { stroke: STEPPER_COLORS[c], "stroke-opacity": 0.4 });
  });
  n.answers.forEach((answer, i) => n.values[k].forEach((value, j) =>
    line(place(n.contexts[k][i]), place(value),
      { stroke: STEPPER_COLORS[answer], "stroke-opacity": 0.6, "stroke-width": 3 * n.attention[k][i][j] })));
  n.values[k].forEach((value, j) => {
    const [x, y] = place(value);
    svg(canvas, "circle", { cx: x, cy: y, r: 7.5, fill: "#fff", stroke: "#333" });
    svg(canvas, "text", { x, y: y + 3.5, "text-anchor": "middle", "font-size": 10, fill: "#111" }, j + 1);
  });
  n.answers.forEach((answer, i) => {
    const at = place(n.contexts[k][i]);
    const to = place(n.contexts[k][i].map((v, d) => v + 0.9 * n.pulls[k][i][d]));
    line(at, to, { stroke: "#222", "stroke-width": 1.2, "marker-end": "url(#stepper-arrow)" });
    mark(canvas, answer, at[0], at[1], STEPPER_COLORS[answer]);
  });
  const cell = 34, left = size + 50, top = 22;
  svg(canvas, "text", { x: left + 2.5 * cell, y: 12, "text-anchor": "middle", "font-size": 11, fill: "#111" }, "attention (rows: positions)");
  n.attention[k].forEach((row, i) => {
    mark(canvas, n.answers[i], left - 14, top + (i + 0.5) * cell, STEPPER_COLORS[n.answers[i]]);
    row.forEach((share, j) => {
      const grey = Math.round(255 * (1 - 0.85 * share)), x = left + j * cell, y = top + i * cell;
      svg(canvas, "rect", { x, y, width: cell, height: cell, fill: `rgb(${grey},${grey},${grey})`, stroke: "#bbb" });
      svg(canvas, "text", { x: x + cell / 2, y: y + cell / 2 + 4, "text-anchor": "middle", "font-size": 10,
        fill: share > 0.5 ? "#fff" : "#111" }, share.toFixed(2).replace(/^0/, ""));
    });
  });
  n.values[k].forEach((_, j) => svg(canvas, "text", { x: left + (j + 0.5) * cell, y: top + 5 * cell + 15,
    "text-anchor": "middle", "font-size": 11, fill: "#111" }, j + 1));
}

const VIRIDIS = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]]; // as in the figures

function shade(part) { // of 0 to 1
  const at = Math.max(0, Math.min(1, part)) * (VIRIDIS.length - 1), k = Math.min(Math.floor(at), VIRIDIS.length - 2);
  return `rgb(${VIRIDIS[k].map((v, i) => Math.round(v + (at - k) * (VIRIDIS[k + 1][i] - v)))})`;
}

function drawSculpting(canvas, n, k) {
  canvas.replaceChildren();
  const size = 146, least = Math.min(...n.entropy), most = Math.max(...n.entropy);
  const label = (x, text) => svg(canvas, "text", { x, y: 12, "text-anchor": "middle", "font-size": 11, fill: "#111" }, text);
  ["values", "contexts"].forEach((name, panel) => {
    const left = panel * (size + 8), last = n[name][n[name].length - 1];
    const centred = (frame) => {
      const mean = [0, 1].map((d) => frame.reduce((sum, v) => sum + v[d], 0) / frame.length);
      return frame.map((v) => v.map((x, d) => x - mean[d]));
    };
    const reach = 1.1 * Math.max(...centred(last).flat().map(Math.abs));
    svg(canvas, "rect", { x: left + 0.5, y: 20.5, width: size, height: size, fill: "#fff", stroke: "#ccc" });
    label(left + size / 2, name);
    centred(n[name][k]).forEach(([x, y], i) => svg(canvas, "circle", {
      cx: left + size / 2 + (x / reach) * size / 2, cy: 20 + size / 2 - (y / reach) * size / 2, r: 2.4,
      fill: shade((n.entropy[i] - least) / (most - least)) }));
  });
  const left = 2 * (size + 8), cell = size / n.attention[k].length;
  label(left + size / 2, "attention");
  svg(canvas, "rect", { x: left + 0.5, y: 20.5, width: size, height: size, fill: "#fff", stroke: "#ccc" });
  n.attention[k].forEach((row, i) => row.slice(0, i + 1).forEach((share, j) => {
    const grey = Math.round(255 * (1 - Math.min(1, share / 0.5)));
    svg(canvas, "rect", { x: left + j * cell, y: 20 + i * cell, width: cell + 0.2, height: cell + 0.2, fill: `rgb(${grey},${grey},${grey})` });
  }));
}

const percent = (share) => `${Math.round(100 * share)} %`;
const STEPPED = { // by figure: its drawing, what is said of a frame, milliseconds between frames
  "fig-free-values": [drawFreeValues, (n, k) => `step ${n.step[k]}, loss ${n.loss[k].toFixed(2)} nats`, 150],
  "fig-sculpting": [drawSculpting, (n, k) => `step ${n.step[k]}: attention has ${percent(n.left_attention[k])} of its way to go, values ${percent(n.left_values[k])}`, 700],
};

function stepper(box) {
  const source = document.getElementById(`numbers-${box.dataset.figure}`);
  if (!source) return;
  const numbers = JSON.parse(source.textContent);
  const [draw, say, pause] = STEPPED[box.dataset.figure];
  const last = numbers.step.length - 1;
  box.innerHTML = `
    <svg viewBox="0 0 460 232" role="img" aria-label="The figure above, one recorded step at a time">
      <defs><marker id="stepper-arrow" viewBox="0 0 6 6" refX="5" refY="3" markerWidth="5" markerHeight="5"
        orient="auto"><path d="M0 0 L6 3 L0 6 z" fill="#222"/></marker></defs><g></g></svg>
    <div class="stepper-controls"><button type="button" aria-label="one step back">◀</button>
      <button type="button" aria-label="play or pause">play</button>
      <button type="button" aria-label="one step on">▶</button>
      <input type="range" min="0" max="${last}" value="0" aria-label="step"><output></output></div>`;
  const [back, play, on] = box.querySelectorAll("button");
  const range = box.querySelector("input"), said = box.querySelector("output"), canvas = box.querySelector("g");
  let timer = null;

  function show(k) {
    range.value = Math.max(0, Math.min(last, k));
    k = Number(range.value);
    draw(canvas, numbers, k);
    const told = say(numbers, k);
    said.textContent = told;
    range.setAttribute("aria-valuetext", told);
  }
  function stop() {
    clearInterval(timer);
    timer = null;
    play.textContent = "play";
  }
  range.addEventListener("input", () => { stop(); show(Number(range.value)); });
  back.addEventListener("click", () => { stop(); show(Number(range.value) - 1); });
  on.addEventListener("click", () => { stop(); show(Number(range.value) + 1); });
  play.addEventListener("click", () => {
    if (timer) return stop();
    if (Number(range.value) === last) show(0);
    play.textContent = "pause";
    timer = setInterval(() => (Number(range.value) < last ? show(Number(range.value) + 1) : stop()), pause);
  });
  show(0);
}

document.addEventListener("DOMContentLoaded", () => document.querySelectorAll(".stepper").forEach(stepper));
