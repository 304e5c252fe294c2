// The span of time that the timeline shows, with functions to move and zoom it, and its ticks. No DOM here.

import { DAY, HOUR, MINUTE, SECOND } from "./format.js";

const SHORTEST = 200;
const LONGEST = 40 * 365 * DAY;
const STEPS = [
  ...[1, 2, 5, 10, 20, 50, 100, 200, 500],
  ...[1, 2, 5, 10, 15, 30].map((n) => n * SECOND),
  ...[1, 2, 5, 10, 15, 30].map((n) => n * MINUTE),
  ...[1, 2, 3, 6, 12].map((n) => n * HOUR),
  ...[1, 2, 7, 14].map((n) => n * DAY),
];
const MONTH_STEPS = [1, 2, 3, 6, 12, 24, 60, 120];

export class Span {
  constructor(begin, end) {
    const length = Math.min(LONGEST, Math.max(SHORTEST, end - begin));
    const middle = (begin + end) / 2;
    this.begin = Math.max(0, Math.round(length === end - begin ? begin : middle - length / 2));
    this.end = this.begin + Math.round(length);
  }

  get length() {
    return this.end - this.begin;
  }

  /** Returns this span moved by a share of its length. */
  moved(share) {
    const by = this.length * share;
    return new Span(this.begin + by, this.end + by);
  }

  /** Returns a longer or shorter span; the time at the share `at` of its length keeps its place. */
  zoomed(factor, at = 0.5) {
    const fixed = this.begin + this.length * at;
    return new Span(fixed - this.length * factor * at, fixed + this.length * factor * (1 - at));
  }

  /** Returns round times in this span, about `most` at most, and the step between two. */
  ticks(most) {
    const step = STEPS.find((one) => this.length / one <= most);
    return step ? { step, times: this.#regular(step) } : this.#months(most);
  }

  #regular(step) {
    const times = [];
    // Days and hours begin in local time, also on days when clocks change.
    const first = new Date(this.begin);
    first.setHours(0, 0, 0, 0);
    if (step >= DAY) {
      const days = Math.round(step / DAY);
      const date = new Date(first);
      date.setDate(date.getDate() - (((Math.round(date.getTime() / DAY) % days) + days) % days));
      while (date.getTime() < this.end) {
        if (date.getTime() >= this.begin) times.push(date.getTime());
        date.setDate(date.getDate() + days);
        date.setHours(0, 0, 0, 0); // again, after a day that began at one o'clock
      }
      return times;
    }
    if (step >= HOUR) {
      for (const date = new Date(first); date.getTime() < this.end; date.setDate(date.getDate() + 1))
        for (let hour = 0; hour < 24; hour += step / HOUR) {
          const time = new Date(date.getFullYear(), date.getMonth(), date.getDate(), hour).getTime();
          // An hour that the day lacks becomes the next one.
          if (time >= this.begin && time < this.end && time !== times.at(-1)) times.push(time);
        }
      return times;
    }
    const midnight = first.getTime();
    for (let time = midnight + Math.ceil((this.begin - midnight) / step) * step; time < this.end; time += step)
      times.push(time);
    return times;
  }

  #months(most) {
    const months = MONTH_STEPS.find((one) => this.length / (one * 30.4 * DAY) <= most) ?? 240;
    const times = [];
    const date = new Date(this.begin);
    date.setHours(0, 0, 0, 0);
    date.setDate(1);
    date.setMonth(months >= 12 ? 0 : date.getMonth() - (date.getMonth() % months));
    if (months >= 12) date.setFullYear(date.getFullYear() - (date.getFullYear() % (months / 12)));
    for (; date.getTime() < this.end; date.setMonth(date.getMonth() + months))
      if (date.getTime() >= this.begin) times.push(date.getTime());
    return { step: months * 30.4 * DAY, times };
  }
}
