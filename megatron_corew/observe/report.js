"use strict";
// One range of steps for all charts; null shows all.
const state = { zoom: null, filters: {} };

function plots() {
  const charts = JSON.parse(document.getElementById("data").textContent);
  return Object.entries(charts).map(([id, data]) => [document.getElementById(id), data]);
}

// Percent from the left, inside the zoomed range.
function place(data, percent) {
  const [low, high] = window_(data);
  return 100 * (percent - low) / (high - low);
}

// The visible part of a chart, in percent of its whole axis.
function window_(data) {
  const [first, last] = data.ends;
  if (!state.zoom || first === last) return [0, 100];
  const low = 100 * (state.zoom[0] - first) / (last - first);
  const high = 100 * (state.zoom[1] - first) / (last - first);
  return [low, high];
}

function stepAt(data, percent) {
  const [first, last] = data.ends, [low, high] = window_(data);
  return first + (last - first) * (low + (high - low) * percent / 100) / 100;
}

function applyZoom() {
  for (const [plot, data] of plots()) {
    const [low, high] = window_(data), svg = plot.querySelector("svg");
    svg.setAttribute("viewBox", `${10 * low} 0 ${10 * (high - low)} 1000`);
    for (const line of svg.querySelectorAll(".gridline")) {
      line.setAttribute("x1", 10 * low);
      line.setAttribute("x2", 10 * high);
    }
    plot.classList.toggle("zoomed", state.zoom !== null);
    plot.querySelectorAll(".tick.x").forEach((tick) => tick.remove());
    for (const step of roundSteps(stepAt(data, 0), stepAt(data, 100))) {
      const tick = document.createElement("span");
      tick.className = "tick x";
      tick.ariaHidden = "true";
      tick.textContent = step.toLocaleString("en");
      const [first, last] = data.ends;
      tick.style.left = place(data, first === last ? 50 : 100 * (step - first) / (last - first)) + "%";
      plot.append(tick);
    }
    plot.querySelector(".cursor").hidden = plot.querySelector(".readout").hidden = true;
  }
  document.getElementById("unzoom").hidden = state.zoom === null;
}

function roundSteps(low, high) {
  const rough = Math.max(1, (high - low) / 5), magnitude = 10 ** Math.floor(Math.log10(rough));
  const stride = Math.ceil([1, 2, 5, 10].map((s) => s * magnitude).find((s) => s >= rough * 0.999));
  const found = [];
  for (let step = Math.ceil(low / stride) * stride; step <= high + 1e-9; step += stride) found.push(step);
  return found;
}

function zoomTo(from, to) {
  state.zoom = to - from >= 1 ? [from, to] : null;
  applyZoom();
}

function readouts() {
  for (const [plot, data] of plots()) {
    const cursor = plot.querySelector(".cursor"), readout = plot.querySelector(".readout");
    const range = plot.querySelector(".range");
    const labels = [...plot.parentElement.querySelectorAll(".legend span")].map((item) => item.textContent);
    let at = data.x.length - 1, pressed = null;
    const visible = (k) => place(data, data.at[k]) >= -0.01 && place(data, data.at[k]) <= 100.01;
    const nearest = (percent) => data.at.reduce((best, x, k) =>
      visible(k) && (best < 0 || Math.abs(place(data, x) - percent) < Math.abs(place(data, data.at[best]) - percent)) ? k : best, -1);
    const percentOf = (event) => {
      const box = plot.getBoundingClientRect();
      return Math.max(0, Math.min(100, 100 * (event.clientX - box.left) / box.width));
    };
    function show(index) {
      if (index < 0 || index >= data.x.length) return;
      at = index;
      const left = place(data, data.at[at]), onTheRight = left < 50;
      cursor.hidden = readout.hidden = false;
      cursor.style.left = left + "%";
      const lines = data.y.map((values, k) => values[at] === "" ? null : labels[k] + " " + values[at]);
      readout.replaceChildren();
      ["step " + data.x[at], ...lines.filter(Boolean)].forEach((text) => {
        const row = document.createElement("div");
        row.textContent = text;
        readout.append(row);
      });
      readout.style.left = onTheRight ? `calc(${left}% + 10px)` : "auto";
      readout.style.right = onTheRight ? "auto" : `calc(${100 - left}% + 10px)`;
    }
    function hide() { cursor.hidden = readout.hidden = true; }
    function release() { pressed = null; range.hidden = true; }
    plot.addEventListener("pointerdown", (event) => {
      if (event.button === 0) pressed = percentOf(event);
    });
    plot.addEventListener("pointermove", (event) => {
      const percent = percentOf(event);
      show(nearest(percent));
      if (pressed === null || Math.abs(percent - pressed) < 2) return;
      if (!plot.hasPointerCapture(event.pointerId)) plot.setPointerCapture(event.pointerId);
      range.hidden = false;
      range.style.left = Math.min(pressed, percent) + "%";
      range.style.width = Math.abs(percent - pressed) + "%";
    });
    plot.addEventListener("pointerup", (event) => {
      const ends = [pressed, percentOf(event)].sort((a, b) => a - b), dragged = !range.hidden;
      release();
      if (dragged) zoomTo(stepAt(data, ends[0]), stepAt(data, ends[1]));
    });
    plot.addEventListener("pointercancel", release);
    plot.addEventListener("pointerleave", hide);
    plot.addEventListener("dblclick", () => zoomTo(0, 0));
    plot.addEventListener("blur", hide);
    plot.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      const factor = { "+": 0.5, "=": 0.5, "-": 2 }[event.key];
      if (move) show(readout.hidden ? at : visible(at + move) ? at + move : at);
      else if (factor) zoomAround(data, data.x[at], factor);
      else if (event.key === "0" || event.key === "Escape") zoomTo(0, 0);
      else return;
      event.preventDefault();
    });
  }
}

function zoomAround(data, step, factor) {
  const [first, last] = data.ends, half = factor * (stepAt(data, 100) - stepAt(data, 0)) / 2;
  const from = Math.max(first, step - half), to = Math.min(last, step + half);
  if (to - from >= last - first) zoomTo(0, 0);
  else if (to - from >= 1) zoomTo(from, to);
}

function applyFilters() {
  const form = document.querySelector(".filters");
  if (!form) return;
  const wanted = Object.fromEntries(new FormData(form));
  state.filters = wanted;
  const text = (wanted.text || "").toLowerCase();
  let shown = 0;
  for (const item of document.querySelectorAll(".question")) {
    const fits = (!wanted.run || item.dataset.run === wanted.run)
      && (!wanted.step || item.dataset.step === wanted.step)
      && (!wanted.kind || item.dataset.kinds.split("|").includes(wanted.kind))
      && (!text || item.textContent.toLowerCase().includes(text));
    item.hidden = !fits;
    shown += fits;
  }
  form.querySelector("output").textContent = `${shown} of ${document.querySelectorAll(".question").length} questions`;
}

function start() {
  readouts();
  if (state.zoom) applyZoom();
  const form = document.querySelector(".filters");
  if (!form) return;
  for (const [name, value] of Object.entries(state.filters)) {
    if (form.elements[name]) form.elements[name].value = value;
  }
  form.addEventListener("input", applyFilters);
  form.addEventListener("submit", (event) => event.preventDefault());
  applyFilters();
}

document.getElementById("unzoom").addEventListener("click", () => zoomTo(0, 0));
start();
