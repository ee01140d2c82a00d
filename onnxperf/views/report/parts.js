// What pages share: figures of the answer, what bounds a run, its kinds of kernels, and the list of sections.

/** A figure of the answer with its name. */
const figureOf = (name, text, below) => el("div", {}, el("dt", {}, name), el("dd", {}, text), below ? el("dd", {}, below) : null);

/** How much of the memory is taken. */
const meterOf = ({ held, capacity, fits }) => {
  const meter = el("i", { class: fits ? "" : "over" });
  meter.style.width = `${Math.min(100, Math.max(0.5, held / capacity * 100)).toFixed(2)}%`;
  return el("span", { class: "meter", "aria-hidden": "true" }, meter);
};

/** The interval as a line with the prediction on it. */
const rangeOf = (d) => {
  const x = linear(d.low, d.high, 0.5, 99.5);
  const at = `${x(d.seconds).toFixed(2)}%`;
  return svg("svg", { class: "interval", width: "100%", height: 14, "aria-hidden": "true" },
    svg("line", { x1: "0.5%", x2: "99.5%", y1: 7, y2: 7 }), svg("line", { x1: "0.5%", x2: "0.5%", y1: 3, y2: 11 }),
    svg("line", { x1: "99.5%", x2: "99.5%", y1: 3, y2: 11 }), svg("circle", { cx: at, cy: 7, r: 4.5 }));
};

const drawBound = (d) => {
  const holder = byId("bound");
  if (!d.shares.length) {
    holder.append(empty("This run takes no time."));
    return;
  }
  const bar = el("div", { class: "stack tall", "aria-hidden": "true" });
  for (const [name, share] of d.shares) {
    const part = el("i", { class: `b-${name}` });
    part.style.flexGrow = String(share);
    bar.append(part);
  }
  holder.append(bar, el("dl", { class: "shares" }, ...d.shares.map(([name, share, meaning]) => el("div", {},
    el("dt", {}, el("i", { class: `b-${name}` }), name), el("dd", { class: "n" }, percent(share)), el("dd", {}, meaning)))));
};

/** Kinds of kernels, those that take most time first; `of` gives that of a kernel. */
const kindsOf = (d) => {
  const kinds = d.kinds.op.map((_, i) => {
    const k = Object.fromEntries(Object.entries(d.kinds).map(([name, column]) => [name, column[i]]));
    return { ...k, moved: k.read + k.written, kernels: 0, total: 0, name: "" };
  });
  d.kernels.kind.forEach((kind, i) => {
    const k = kinds[kind];
    k.kernels += 1;
    k.total += k.seconds;
    k.name = k.name || d.kernels.name[i];
  });
  const all = [...kinds].sort((a, b) => b.total - a.total);
  all.of = (i) => kinds[d.kernels.kind[i]];
  return all;
};

const drawNav = () => {
  byId("nav").append(el("ul", {}, ...[...document.querySelectorAll("main > section")].map((section) => {
    const head = section.querySelector("h2");
    return el("li", {}, el("a", { href: `#${head.id}` }, head.textContent));
  })));
};
