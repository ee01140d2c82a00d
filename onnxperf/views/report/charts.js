// What charts share: scales, axes, the tip beside a mark, and the keys that go from mark to mark.

const linear = (from, to, start, end) => (value) => start + (value - from) / (to - from || 1) * (end - start);
const logarithmic = (from, to, start, end) => {
  const scale = linear(Math.log(from), Math.log(to), start, end);
  return (value) => scale(Math.log(value));
};
/** Round values from one to another, about so many. */
const ticks = (from, to, about) => {
  const rough = (to - from) / about;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough * 0.999);
  const found = [];
  for (let i = Math.ceil(from / step - 1e-9); i * step <= to + step * 1e-9; i++) found.push(i * step);
  return found;
};
/** Powers of ten between two values, of which no more than so many. */
const decades = (from, to, most) => {
  const first = Math.ceil(Math.log10(from) - 1e-9);
  const last = Math.floor(Math.log10(to) + 1e-9);
  const step = Math.max(1, Math.ceil((last - first + 1) / most));
  const found = [];
  for (let i = first; i <= last; i += step) found.push(10 ** i);
  return found;
};
const CHARACTER = 6.6; // pixels of width of a character, on average
/** A value at x with its text in the middle, or so that it ends or begins at an edge. */
const within = (x, text, from, to) => {
  const half = text.length * CHARACTER / 2;
  if (x + half > to) return { x: to, "text-anchor": "end" };
  return x - half < from ? { x: from, "text-anchor": "start" } : { x, "text-anchor": "middle" };
};
/** Powers of ten as texts that are alike: plain numbers where all are short, else all as powers. */
const powers = (values) => {
  const short = values.every((v) => v > 0.0009 && v < 11000);
  const up = (n) => [...String(n)].map((c) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[c] || "⁻").join("");
  return values.map((v) => short ? digits(v).replace(/\B(?=(\d{3})+$)/g, v < 1 ? "" : ",") : `10${up(Math.round(Math.log10(v)))}`);
};
const path = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

/** Draw again whenever the width of a holder changes, at that width. */
const atWidth = (holder, draw) => {
  let width = 0;
  const fit = () => {
    const now = Math.round(holder.clientWidth);
    if (now && now !== width) draw(width = now);
  };
  new ResizeObserver(fit).observe(holder);
  fit();
};

/** Lines of text beside a mark; the first is its name. */
const showTip = (lines, box) => {
  const tip = byId("tip");
  tip.replaceChildren(...lines.filter(Boolean).map((line, i) => el(i ? "span" : "strong", { dir: "auto" }, line)));
  tip.hidden = false;
  const wide = document.documentElement.clientWidth;
  const left = Math.min(Math.max(8, box.left + box.width / 2 - tip.offsetWidth / 2), wide - tip.offsetWidth - 8);
  const above = box.top - tip.offsetHeight - 10;
  tip.style.left = `${left + window.scrollX}px`;
  tip.style.top = `${(above > 4 ? above : box.bottom + 10) + window.scrollY}px`;
};
const hideTip = () => { byId("tip").hidden = true; };
document.addEventListener("keydown", (e) => { if (e.key === "Escape") hideTip(); });

/** Marks of a chart as one stop of the tab key: arrows go from one to the next. lines: what the tip of a mark says. */
const rove = (marks, lines) => {
  marks.forEach((mark, i) => {
    mark.setAttribute("tabindex", i ? "-1" : "0");
    mark.setAttribute("role", "img");
    mark.setAttribute("aria-label", lines(i).filter(Boolean).join(", "));
    const show = () => showTip(lines(i), mark.getBoundingClientRect());
    mark.addEventListener("pointerenter", show);
    mark.addEventListener("pointerleave", hideTip);
    mark.addEventListener("focus", show);
    mark.addEventListener("blur", hideTip);
    mark.addEventListener("keydown", (e) => {
      const to = { ArrowRight: i + 1, ArrowDown: i + 1, ArrowLeft: i - 1, ArrowUp: i - 1, Home: 0, End: marks.length - 1 }[e.key];
      if (to === undefined) return;
      e.preventDefault();
      const next = marks[Math.min(Math.max(to, 0), marks.length - 1)];
      marks.forEach((m) => m.setAttribute("tabindex", m === next ? "0" : "-1"));
      next.focus();
    });
  });
};

const legend = (names) => el("ul", { class: "legend" },
  ...names.map((name) => el("li", {}, el("i", { class: `b-${name}` }), name)));
const empty = (text) => el("p", { class: "empty" }, text);
/** A table that can be scrolled sideways by keys, too. heads: [text, is a figure]. */
const plainTable = (caption, heads, rows, unseen = false) => el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
  el("table", {}, el("caption", { class: unseen ? "unseen" : "" }, caption),
    el("thead", {}, el("tr", {}, ...heads.map(([text, figure]) => el("th", { scope: "col", class: figure ? "n" : "" }, text)))),
    el("tbody", {}, ...rows.map((cells) => el("tr", {}, ...cells.map((cell, i) =>
      el(i ? "td" : "th", { scope: i ? undefined : "row", class: heads[i][1] ? "n" : "" }, cell)))))));
