// DOM elements, and numbers and times as text. Data of a run enters the document only as text nodes or through the CSS
// object model: nothing here parses markup.

export function h(tag, props, ...children) {
  const e = document.createElement(tag);
  for (const [k, v] of Object.entries(props || {})) {
    if (v === undefined || v === null || v === false) continue;
    if (k.startsWith("on")) e.addEventListener(k.slice(2), v);
    else if (k === "style") Object.assign(e.style, v);
    else if (k === "class") e.className = v;
    else if (k in e && k !== "list") e[k] = v;
    else e.setAttribute(k, v === true ? "" : v);
  }
  put(e, children);
  return e;
}

export function put(e, children) {
  for (const c of [children].flat(Infinity)) if (c !== null && c !== undefined && c !== false) e.append(c);
  return e;
}

export function show(e, ...children) {
  e.replaceChildren();
  return put(e, children);
}

const groups = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

// A number for display: about four digits.
export function num(v) {
  if (v === null || v === undefined || Number.isNaN(v)) return "–";
  if (!Number.isFinite(v)) return String(v);
  const a = Math.abs(v);
  if (v === 0) return "0";
  if (a >= 1e9) return v.toExponential(2);
  if (Number.isInteger(v) || a >= 1e4) return groups.format(v);
  if (a >= 1) return String(Number(v.toPrecision(4)));
  if (a >= 1e-3) return String(Number(v.toPrecision(3)));
  return v.toExponential(2);
}

export const bytes = (n) => (n >= 2 ** 30 ? `${num(n / 2 ** 30)} GiB` : `${num(n / 2 ** 20)} MiB`);

// A number with all stored digits.
export const exact = (v) => (v === null ? "not finite" : Object.is(v, -0) ? "-0" : String(v));

export function short(v) {
  const a = Math.abs(v);
  return a >= 1e9 ? num(v / 1e9) + "G" : a >= 1e6 ? num(v / 1e6) + "M" : a >= 1e4 ? num(v / 1e3) + "k" : num(v);
}

export function seconds(s) {
  if (s === null || s === undefined || Number.isNaN(s)) return "–";
  if (s < 0.9995) return `${num(s * 1000)} ms`;
  if (s < 90) return `${num(Math.round(s * 10) / 10)} s`;
  if (s < 5400) return `${Math.floor(s / 60)} min ${Math.round(s % 60)} s`;
  if (s < 172800) return `${Math.floor(s / 3600)} h ${Math.round((s % 3600) / 60)} min`;
  return `${num(Math.round(s / 8640) / 10)} days`;
}

export const percent = (x) => `${num(Math.round(x * 1000) / 10)} %`;
export const clock = (us) => new Date(us / 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
export const moment = (us) => new Date(us / 1000).toLocaleString([], { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
export const plural = (n, word, many) => `${num(n)} ${n === 1 ? word : many || word + "s"}`;

export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
export const runColour = (run) => `--run${run % 6}`;

export function segmented(options, value, onchange, label) {
  const box = h("span", { class: "segmented", role: "group", "aria-label": label });
  const buttons = options.map(([v, text]) => h("button", { type: "button", onclick: () => choose(v), "aria-pressed": String(v === value) }, text));
  function choose(v) {
    options.forEach(([o], i) => buttons[i].setAttribute("aria-pressed", String(o === v)));
    onchange(v);
  }
  box.choose = choose;
  return put(box, buttons);
}

// Debounce: runs fn after so long without a call.
export function calm(fn, ms) {
  let timer;
  return (...a) => {
    clearTimeout(timer);
    timer = setTimeout(() => fn(...a), ms);
  };
}
