// Line charts over time.

import { h } from "./dom.js";

/** The seconds that a chart shows. */
const WINDOW_S = 300;

/** The colour that a CSS variable stands for, in the present theme. */
function colour(element, name) {
  element.style.color = `var(${name})`;
  const value = getComputedStyle(element).color;
  element.style.color = "";
  return value;
}

/** A chart. `lines` are pairs of a label and the name of a CSS variable; `format` writes values. */
export class Chart {
  constructor(title, lines, format, { max } = {}) {
    this.title = title;
    this.lines = lines;
    this.format = format;
    this.max = max;
    this.data = [[], ...lines.map(() => [])];
    this.plot = h("div", { class: "plot" });
    this.canvas = h("div", { role: "img", "aria-label": title }, this.plot);
    this.legend = h("ul", { class: "legend" });
    this.element = h("figure", {}, h("figcaption", {}, title), this.legend, this.canvas);
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(this.plot);
    this.repaint = () => this.create();
    document.addEventListener("themechange", this.repaint);
  }

  /** Draws the chart anew, with the colours of the present theme. */
  create() {
    if (!this.plot.isConnected || this.plot.clientWidth === 0) return;
    this.chart?.destroy();
    const axis = { stroke: colour(this.plot, "--muted"), grid: { stroke: colour(this.plot, "--line"), width: 1 }, ticks: { show: false } };
    this.chart = new window.uPlot({
      width: this.plot.clientWidth,
      height: 160,
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false } },
      scales: { y: { range: (_, low, high) => [0, this.max ?? Math.max(high * 1.1, 1e-9)] } },
      axes: [{ ...axis, space: 90, size: 32, values: (_, ticks) => ticks.map((tick) => new Date(tick * 1000).toLocaleTimeString()) }, { ...axis, size: 72, values: (_, ticks) => ticks.map((tick) => this.format(tick)) }],
      series: [{}, ...this.lines.map(([label, name]) => ({
        label, stroke: colour(this.plot, name), width: 2, points: { show: false }, spanGaps: false,
      }))],
    }, this.data, this.plot);
  }

  resize() {
    if (!this.chart) this.create();
    else if (this.plot.clientWidth > 0) this.chart.setSize({ width: this.plot.clientWidth, height: 160 });
  }

  /** Adds points, each a time in seconds and one value for each line. Values that are not numbers are gaps. */
  add(points) {
    for (const [time, ...values] of points) {
      this.data[0].push(time);
      values.forEach((value, at) => this.data[at + 1].push(Number.isFinite(value) ? value : null));
    }
    while (this.data[0].length > 0 && this.data[0][0] < this.data[0].at(-1) - WINDOW_S) {
      this.data.forEach((list) => list.shift());
    }
    this.chart?.setData(this.data);
    this.describe();
  }

  /** Writes the last values as text, for the legend and for readers of screens. */
  describe() {
    const parts = this.lines.map(([label, name], at) => {
      const last = this.data[at + 1].at(-1);
      return { label, name, value: last === null || last === undefined ? "–" : this.format(last) };
    });
    this.legend.replaceChildren(...parts.map(({ label, name, value }) => h("li", {},
      h("span", { class: "swatch", style: { background: `var(${name})` } }), `${label} `, h("strong", {}, value))));
    this.canvas.setAttribute("aria-label", `${this.title}: ${parts.map(({ label, value }) => `${label} ${value}`).join(", ")}`);
  }

  destroy() {
    this.observer.disconnect();
    document.removeEventListener("themechange", this.repaint);
    this.chart?.destroy();
  }
}
