// Draws the timeline: a column for each span of time, a colour for each topic.

import { h, show, svg } from "./dom.js";
import { count, duration, moment, short, tick } from "./format.js";
import { Span } from "./span.js";

const LEFT = 44,
  RIGHT = 8,
  TOP = 10,
  BOTTOM = 24;
export const COLOURS = 7;

/**
 * @param events `selected(begin, end)` or `selected()`, and `moved(span)` when the user zooms or moves the chart.
 */
export class Chart {
  #events;
  #data;
  #span = new Span(0, 1);
  #selection;
  #drag;
  #pointers = new Map();

  constructor(events) {
    this.#events = events;
    this.tip = h("div", { class: "tip", hidden: true });
    this.picture = svg("svg", { class: "chart", role: "img", tabindex: "0" });
    this.element = h("div", { class: "chart-box" }, this.picture, this.tip);
    this.picture.addEventListener("wheel", (event) => this.#wheel(event), { passive: false });
    this.picture.addEventListener("pointerdown", (event) => this.#down(event));
    this.picture.addEventListener("pointermove", (event) => this.#move(event));
    this.picture.addEventListener("pointerup", (event) => this.#up(event));
    this.picture.addEventListener("pointercancel", (event) => this.#cancel(event));
    this.picture.addEventListener("pointerleave", () => {
      this.tip.hidden = true;
    });
    this.picture.addEventListener("dblclick", () => this.zoomToSelection());
    new ResizeObserver(() => this.#draw()).observe(this.element);
  }

  update(span, data, selection) {
    if (span.begin !== this.#span.begin || span.end !== this.#span.end) this.tip.hidden = true;
    this.#span = span;
    this.#data = data;
    this.#selection = selection;
    if (!this.#drag) this.#draw();
  }

  zoomToSelection() {
    if (this.#selection) this.#events.moved(new Span(...this.#selection));
  }

  get #width() {
    return Math.max(200, this.element.clientWidth);
  }

  get #height() {
    return this.#width < 520 ? 190 : 240;
  }

  #x(ms) {
    return LEFT + ((ms - this.#span.begin) / this.#span.length) * (this.#width - LEFT - RIGHT);
  }

  #ms(x) {
    return this.#span.begin + ((x - LEFT) / (this.#width - LEFT - RIGHT)) * this.#span.length;
  }

  #draw() {
    const width = this.#width,
      height = this.#height;
    this.picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.picture.setAttribute("height", height);
    const floor = height - BOTTOM;
    const layers = [this.#axis(width, height, floor)];
    if (this.#data) {
      layers.push(this.#bars(floor));
      const now = this.#x(this.#data.nowMs);
      if (now >= LEFT && now <= width - RIGHT)
        layers.push(svg("line", { class: "now", x1: now, x2: now, y1: TOP - 4, y2: floor }));
      this.picture.setAttribute(
        "aria-label",
        `${count(this.#data.total)} messages are due from ${moment(this.#span.begin)} to ${moment(this.#span.end)}`,
      );
    }
    if (this.#selection) {
      const from = Math.max(LEFT, this.#x(this.#selection[0])),
        to = Math.min(width - RIGHT, this.#x(this.#selection[1]));
      if (to > from)
        layers.unshift(svg("rect", { class: "selection", x: from, y: TOP, width: to - from, height: floor - TOP }));
    }
    show(this.picture, layers);
  }

  #axis(width, height, floor) {
    const { times, step } = this.#span.ticks(Math.max(2, Math.floor(width / 110)));
    return svg(
      "g",
      { class: "axis" },
      svg("line", { x1: LEFT, x2: width - RIGHT, y1: floor, y2: floor }),
      times.map((time) => [
        svg("line", { class: "grid", x1: this.#x(time), x2: this.#x(time), y1: TOP, y2: floor + 4 }),
        svg(
          "text",
          { x: Math.min(this.#x(time), width - 30), y: height - 7, "text-anchor": "middle" },
          tick(time, step),
        ),
      ]),
    );
  }

  #sums() {
    const { topics, others, columns } = this.#data;
    const rows = topics.slice(0, COLOURS).map((one) => one.counts);
    const rest = [...topics.slice(COLOURS).map((one) => one.counts), ...(others ? [others] : [])];
    if (rest.length)
      rows.push(Array.from({ length: columns }, (_, place) => rest.reduce((sum, row) => sum + row[place], 0)));
    return rows;
  }

  #bars(floor) {
    const { beginMs, widthMs, columns } = this.#data;
    const rows = this.#sums();
    const totals = Array.from({ length: columns }, (_, place) => rows.reduce((sum, row) => sum + row[place], 0));
    const most = Math.max(1, ...totals);
    const scale = (floor - TOP) / most;
    const bars = [];
    for (let place = 0; place < columns; place++) {
      if (!totals[place]) continue;
      const from = this.#x(beginMs + place * widthMs),
        to = this.#x(beginMs + (place + 1) * widthMs);
      const left = Math.max(LEFT, from),
        right = Math.min(this.#width - RIGHT, to);
      if (right <= left) continue;
      // Even a single message is visible beside a million.
      const stretch = Math.max(1, 2 / (totals[place] * scale));
      let y = floor;
      rows.forEach((row, topic) => {
        if (!row[place]) return;
        const tall = row[place] * scale * stretch;
        y -= tall;
        bars.push(
          svg("rect", {
            class: `t${topic}`,
            x: left,
            y,
            width: Math.max(1, right - left - (to - from > 4 ? 1 : 0)),
            height: tall,
          }),
        );
      });
    }
    const labels = most > 1 ? [most, Math.round(most / 2)] : [most];
    return svg(
      "g",
      {},
      svg(
        "g",
        { class: "axis" },
        labels.map((number) => [
          svg("line", {
            class: "grid",
            x1: LEFT,
            x2: this.#width - RIGHT,
            y1: floor - number * scale,
            y2: floor - number * scale,
          }),
          svg("text", { x: LEFT - 6, y: floor - number * scale + 4, "text-anchor": "end" }, short(number)),
        ]),
      ),
      bars,
    );
  }

  #place(event) {
    const box = this.picture.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  }

  #wheel(event) {
    event.preventDefault();
    const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
    if (sideways || event.shiftKey) {
      this.#events.moved(this.#span.moved((event.deltaX || event.deltaY) / 1000));
      return;
    }
    const at = (this.#ms(this.#place(event).x) - this.#span.begin) / this.#span.length;
    this.#events.moved(
      this.#span.zoomed(Math.exp(Math.max(-120, Math.min(120, event.deltaY)) / 300), Math.min(1, Math.max(0, at))),
    );
  }

  #down(event) {
    if (event.button !== 0) return;
    this.picture.setPointerCapture(event.pointerId);
    const { x } = this.#place(event);
    this.#pointers.set(event.pointerId, x);
    this.#drag = { from: x, to: x, span: this.#span };
    if (this.#pointers.size === 2) this.#drag.pinch = [...this.#pointers.values()].map((one) => this.#ms(one));
  }

  #move(event) {
    const { x, y } = this.#place(event);
    if (!this.#drag) {
      this.#point(x, y);
      return;
    }
    this.#pointers.set(event.pointerId, x);
    if (this.#drag.pinch) {
      this.#pinch();
      return;
    }
    this.#drag.to = x;
    if (Math.abs(x - this.#drag.from) > 3) {
      this.#selection = [this.#ms(Math.min(x, this.#drag.from)), this.#ms(Math.max(x, this.#drag.from))].map(
        Math.round,
      );
      this.#draw();
    }
  }

  /** Zooms so that both fingers stay on their times. */
  #pinch() {
    const [one, other] = [...this.#pointers.values()];
    const [first, second] = this.#drag.pinch;
    if (Math.abs(other - one) < 10) return;
    const perPixel = Math.abs((second - first) / (other - one));
    const begin = first - (one - LEFT) * perPixel;
    this.#events.moved(new Span(begin, begin + perPixel * (this.#width - LEFT - RIGHT)));
  }

  #up(event) {
    const drag = this.#drag;
    this.#pointers.delete(event.pointerId);
    if (this.#pointers.size) return;
    this.#drag = undefined;
    if (!drag || drag.pinch) return;
    if (Math.abs(drag.to - drag.from) > 3) this.#events.selected(this.#selection);
    else this.#events.selected(this.#column(drag.from));
  }

  #cancel(event) {
    this.#pointers.delete(event.pointerId);
    if (!this.#pointers.size) this.#drag = undefined;
  }

  /** Returns begin and end of the column at `x`, if it has messages. */
  #column(x) {
    if (!this.#data) return undefined;
    const { beginMs, widthMs, columns } = this.#data;
    const place = Math.floor((this.#ms(x) - beginMs) / widthMs);
    if (place < 0 || place >= columns || !this.#sums().some((row) => row[place])) return undefined;
    return [beginMs + place * widthMs, beginMs + (place + 1) * widthMs];
  }

  #point(x, y) {
    const column = this.#column(x);
    this.tip.hidden = !column;
    if (!column) return;
    const { topics, others, beginMs, widthMs } = this.#data;
    const place = Math.round((column[0] - beginMs) / widthMs);
    const rows = topics.map((one, topic) => [one.topic, one.counts[place], Math.min(topic, COLOURS)]);
    if (others) rows.push(["other topics", others[place], COLOURS]);
    const held = rows.filter(([, number]) => number);
    show(
      this.tip,
      h("strong", {}, moment(column[0])),
      h("small", {}, ` for ${duration(widthMs)}`),
      h(
        "ul",
        {},
        held
          .slice(0, 8)
          .map(([name, number, colour]) =>
            h("li", {}, h("i", { class: `dot t${colour}` }), h("span", {}, name), h("b", {}, count(number))),
          ),
        held.length > 8 && h("li", {}, `and ${held.length - 8} more`),
      ),
    );
    this.tip.style.left = `${Math.min(x + 14, this.#width - 240)}px`;
    this.tip.style.top = `${Math.max(0, y - 10)}px`;
  }
}
