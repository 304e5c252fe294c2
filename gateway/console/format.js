// Formats numbers, times and durations for people. Times are local, and have milliseconds where these matter.

/** A hint how to type a time. */
export const WHEN = "now, +30s, +2h, 2030-01-31T09:30, or epoch ms";

const two = (number) => String(number).padStart(2, "0");
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

export const SECOND = 1_000,
  MINUTE = 60_000,
  HOUR = 3_600_000,
  DAY = 86_400_000;

export const count = (number) => number.toLocaleString("en-US");

/** At most four figures: 950, 1.2k, 31k, 4.5M. */
export function short(number) {
  for (const [size, unit] of [
    [1e9, "G"],
    [1e6, "M"],
    [1e3, "k"],
  ])
    if (number >= size) return `${(number / size).toFixed(number < size * 10 ? 1 : 0)}${unit}`;
  return number < 10 && number % 1 ? number.toFixed(1) : String(Math.round(number));
}

export function bytes(number) {
  for (const [size, unit] of [
    [2 ** 40, "TiB"],
    [2 ** 30, "GiB"],
    [2 ** 20, "MiB"],
    [2 ** 10, "KiB"],
  ])
    if (number >= size) return `${(number / size).toFixed(number < size * 10 ? 1 : 0)} ${unit}`;
  return `${number} B`;
}

const day = (date) => `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
const clock = (date) => `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;

/** 2030-01-31 09:30:00.125 */
export function moment(ms) {
  const date = new Date(ms);
  return Number.isNaN(date.getTime())
    ? String(ms)
    : `${day(date)} ${clock(date)}.${String(date.getMilliseconds()).padStart(3, "0")}`;
}

/** What the clocks of a time zone show, such as `Mon 09:30:00`. */
export function clockIn(ms, zone) {
  const parts = { weekday: "short", hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" };
  return new Date(ms).toLocaleString("en-GB", { ...parts, timeZone: zone }).replace(",", "");
}

/** A time for programs; undefined if it is not valid, since the sender of a message can write any number. */
export function iso(ms) {
  const date = new Date(ms);
  return Number.isNaN(date.getTime()) ? undefined : date.toISOString();
}

/** A time as the API reads it: the API takes a number with few digits for a mistake. */
export const written = (ms) => (ms < 1e11 ? new Date(ms).toISOString() : ms);

/** Times without a zone in the forms that the API takes, but for those by weeks: 2030-01-31, 2030-01-31 09:30:00,125 as
 * in logs, 20300131T0930. */
const ZONELESS =
  /^\s*(?!\d+\s*$)(\d{4})-?(\d\d)-?(\d\d)(?:\D(\d\d)(?::?(\d\d)(?::?(\d\d)(?:[.,](\d+))?)?)?)?\s*$/;

/** A typed time as the API reads it. Without a zone it is in the user's time zone, not the gateway's. */
export function typedTime(text) {
  const [, year, month, dayOfMonth, hour = "00", minute = "00", second = "00", rest = "0"] = ZONELESS.exec(text) ?? [];
  const date = `${year}-${month}-${dayOfMonth}`;
  const found = new Date(`${date}T${hour}:${minute}:${second}.${rest}`);
  // Browsers turn 31 February into 3 March; the API refuses it.
  return day(found) === date ? written(found.getTime()) : text;
}

/** A time as the user would type it here. A text that is not a time, or cannot be typed, stays as it is. */
export function shownTime(text) {
  const shown = moment(Number(text));
  return typedTime(shown) === Number(text) ? shown : text;
}

/** As much of a time as distinguishes it from its neighbours, which are `step` ms away. */
export function tick(ms, step) {
  const date = new Date(ms);
  if (step < SECOND) return `${clock(date)}.${String(date.getMilliseconds()).padStart(3, "0")}`;
  if (step < MINUTE) return clock(date);
  const midnight = date.getHours() === 0 && date.getMinutes() === 0;
  if (step < DAY && !midnight) return `${two(date.getHours())}:${two(date.getMinutes())}`;
  if (step < 25 * DAY) return `${date.getDate()} ${MONTHS[date.getMonth()]}`;
  return step < 300 * DAY ? `${MONTHS[date.getMonth()]} ${date.getFullYear()}` : String(date.getFullYear());
}

/** A duration in its two largest units: 2d 3h, 1m 30s, 250ms. */
export function duration(ms) {
  if (ms < SECOND) return `${Math.round(ms)}ms`;
  const parts = [];
  let rest = Math.round(ms / SECOND) * SECOND;
  for (const [size, unit] of [
    [365 * DAY, "y"],
    [DAY, "d"],
    [HOUR, "h"],
    [MINUTE, "m"],
    [SECOND, "s"],
  ]) {
    if (rest >= size || parts.length) parts.push([Math.floor(rest / size), unit]);
    rest %= size;
  }
  return parts
    .slice(0, 2)
    .filter(([number]) => number)
    .map(([number, unit]) => number + unit)
    .join(" ");
}

export const distance = (ms, now) =>
  Math.abs(ms - now) < SECOND ? "now" : ms > now ? `in ${duration(ms - now)}` : `${duration(now - ms)} ago`;

/** The bound in seconds below which this share of the counted values lies; undefined without values. */
export function quantile(bounds, counts, share) {
  const total = counts.reduce((sum, number) => sum + number, 0);
  if (!total) return undefined;
  let seen = 0;
  for (let place = 0; place < counts.length; place++) {
    seen += counts[place];
    if (seen >= total * share) return bounds[place] ?? Infinity;
  }
  return undefined;
}

/** A time for an input of type datetime-local. */
export function inputTime(ms) {
  const date = new Date(ms);
  return `${day(date)}T${clock(date)}`;
}
