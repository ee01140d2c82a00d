// The kernels as a table that sorts and filters, each by itself or summed up by operator or module.

const FIRST = 25; // rows shown at first
const MORE = 1000; // and with each press of the button

const drawTable = (d, all) => {
  const holder = byId("table");
  if (!d.kernels.name.length) {
    holder.append(empty("This run launches no kernels."));
    return;
  }
  const kernels = tableRows(d, all);
  const state = { by: "kernel", sort: "seconds", down: true, text: "", bound: "", most: FIRST };
  const search = el("input", { type: "search", id: "filter-text", placeholder: "name, operator or module", autocomplete: "off", spellcheck: "false" });
  const bounds = d.bounds.filter((_, b) => all.some((k) => k.bound === b));
  const select = el("select", { id: "filter-bound" }, el("option", { value: "" }, "all"), ...bounds.map((b) => el("option", { value: b }, b)));
  const views = ["kernel", "operator", ...(d.kernels.modules.some(Boolean) ? ["module"] : [])];
  const pick = el("fieldset", { class: "pick" }, el("legend", { class: "unseen" }, "A row for each"), ...views.map((by) => {
    const input = el("input", { type: "radio", name: "by", value: by, id: `by-${by}`, checked: by === state.by });
    input.addEventListener("change", () => draw({ by, sort: "seconds", down: true, most: FIRST }));
    return el("span", {}, input, el("label", { for: `by-${by}` }, `${by}s`));
  }));
  const status = el("p", { class: "status", role: "status", "aria-live": "polite" });
  const body = el("tbody");
  const head = el("thead");
  const caption = el("caption", { class: "unseen" });
  const more = el("button", { type: "button", class: "more" });
  const draw = (change = {}) => {
    Object.assign(state, change);
    const columns = COLUMNS[state.by].filter((c) => kernels.some((k) => k[c.id] !== kernels[0][c.id]) || !c.spare);
    const wanted = state.text.trim().toLowerCase();
    const kept = kernels.filter((k) => (!state.bound || k.bound === state.bound) && (!wanted || k.text.includes(wanted)));
    const rows = (state.by === "kernel" ? kept : summedUp(kept, state.by)).sort(inOrder(state));
    caption.textContent = `${state.by === "kernel" ? "Kernels" : `Kernels by ${state.by}`}, sorted by ${columns.find((c) => c.id === state.sort).title}`;
    head.replaceChildren(el("tr", {}, ...columns.map((c) => {
      const sorted = c.id === state.sort;
      const button = el("button", { type: "button" }, c.title, el("span", { class: `arrow${sorted ? "" : " off"}`, "aria-hidden": "true" }, state.down ? "↓" : "↑"));
      button.addEventListener("click", () => {
        draw({ sort: c.id, down: sorted ? !state.down : Boolean(c.figure) });
        head.querySelectorAll("button")[columns.indexOf(c)].focus();
      });
      return el("th", { scope: "col", class: c.figure ? "n" : "", "aria-sort": sorted ? (state.down ? "descending" : "ascending") : "none" }, button);
    })));
    const longest = Math.max(...rows.map((r) => r.seconds));
    body.replaceChildren(...rows.slice(0, state.most).map((row) => el("tr", {}, ...columns.map((c, i) =>
      el(i ? "td" : "th", { scope: i ? undefined : "row", class: c.figure ? "n" : "", dir: c.figure ? undefined : "auto" }, c.cell(row, d, longest))))));
    if (!rows.length) body.append(el("tr", {}, el("td", { colspan: columns.length, class: "empty" }, "No kernel matches.")));
    const left = rows.length - state.most;
    more.hidden = left <= 0;
    more.textContent = `Show ${Math.min(left, MORE).toLocaleString("en-US")} more`;
    const what = state.by === "kernel" ? "" : `${plural(rows.length, state.by)} of `;
    const part = kept.length < kernels.length || d.count > kernels.length;
    status.textContent = part
      ? `${what}${kept.length.toLocaleString("en-US")} of ${plural(d.count, "kernel")}, ${duration(sum(kept.map((k) => k.seconds)))}`
      : `${what}${plural(d.count, "kernel")}, ${duration(sum(kept.map((k) => k.seconds)))}`;
  };
  search.addEventListener("input", () => draw({ text: search.value, most: FIRST }));
  select.addEventListener("change", () => draw({ bound: select.value, most: FIRST }));
  more.addEventListener("click", () => {
    const before = body.rows.length;
    draw({ most: state.most + MORE });
    body.rows[before].cells[0].setAttribute("tabindex", "-1");
    body.rows[before].cells[0].focus();
  });
  holder.append(
    el("div", { class: "filters", role: "search", "aria-label": "Kernels" }, pick,
      el("div", {}, el("label", { for: "filter-text" }, "Filter"), search),
      el("div", {}, el("label", { for: "filter-bound" }, "Bound by"), select)),
    status,
    el("div", { class: "scroll tall", tabindex: "0", role: "region", "aria-label": "Table of kernels" }, el("table", { id: "kernel-table" }, caption, head, body)),
    more);
  draw();
};

const tableRows = (d, all) => d.kernels.name.map((name, i) => {
  const k = all.of(i);
  const module = d.kernels.modules[d.kernels.module[i]];
  return {
    kernel: name, operator: k.op, module: module || "(none)", seconds: k.seconds, share: k.seconds, low: k.low, high: k.high, flops: k.flops,
    moved: k.moved, bound: d.bounds[k.bound], start: d.kernels.start[i], stream: d.kernels.streams[d.kernels.stream[i]],
    variant: k.variant, source: k.source, times: k.repeat, text: `${name} ${k.op} ${module}`.toLowerCase(),
  };
});

const summedUp = (kernels, by) => {
  const groups = new Map();
  for (const k of kernels) {
    if (!groups.has(k[by])) groups.set(k[by], []);
    groups.get(k[by]).push(k);
  }
  return [...groups].map(([name, of]) => {
    const bounds = new Map();
    for (const k of of) bounds.set(k.bound, (bounds.get(k.bound) || 0) + k.seconds);
    const total = (field) => sum(of.map((k) => k[field]));
    return {
      [by]: name, seconds: total("seconds"), share: total("seconds"), flops: total("flops"), moved: total("moved"), times: total("times"),
      bound: [...bounds].sort((a, b) => b[1] - a[1])[0][0],
    };
  });
};

const inOrder = ({ sort, down }) => (a, b) => {
  const [x, y] = [a[sort], b[sort]];
  const found = typeof x === "number" ? x - y : String(x).localeCompare(String(y), "en", { numeric: true });
  return down ? -found : found;
};

/** A name that breaks behind its separators where the line is short. */
const nameCell = (name) => el("span", { class: "name", title: name },
  ...shortened(name).split(/(?<=[/._:-])/).flatMap((part) => [el("wbr"), part]).slice(1));
const boundCell = (row) => el("span", { class: "bound" }, el("i", { class: `b-${row.bound}` }), row.bound);
const shareCell = (row, d, longest) => {
  const bar = el("i", { class: "share" });
  bar.style.width = `${(row.seconds / (longest || 1) * 100).toFixed(1)}%`;
  return el("span", { class: "with-share" }, percent(row.seconds / d.seconds), bar);
};
const COLUMN = {
  kernel: { id: "kernel", title: "Kernel", cell: (r) => nameCell(r.kernel) },
  operator: { id: "operator", title: "Operator", cell: (r) => r.operator },
  module: { id: "module", title: "Module", cell: (r) => nameCell(r.module) },
  times: { id: "times", title: "Kernels", figure: true, cell: (r) => count(r.times) },
  seconds: { id: "seconds", title: "Time", figure: true, cell: (r) => duration(r.seconds) },
  share: { id: "share", title: "Share", figure: true, cell: shareCell },
  range: { id: "high", title: "80% interval", figure: true, cell: (r) => `${duration(r.low)} \u2013 ${duration(r.high)}` },
  bound: { id: "bound", title: "Bound by", cell: boundCell },
  flops: { id: "flops", title: "FLOPs", figure: true, cell: (r) => r.flops ? flops(r.flops) : "" },
  moved: { id: "moved", title: "Bytes", figure: true, cell: (r) => bytes(r.moved) },
  start: { id: "start", title: "Start", figure: true, cell: (r) => duration(r.start) },
  stream: { id: "stream", title: "Stream", spare: true, cell: (r) => r.stream },
  variant: { id: "variant", title: "Tile or algorithm", spare: true, cell: (r) => r.variant },
  source: { id: "source", title: "Source", spare: true, cell: (r) => r.source },
};
const columnsOf = (...names) => names.map((name) => COLUMN[name]);
const COLUMNS = {
  kernel: columnsOf("kernel", "seconds", "share", "bound", "operator", "range", "flops", "moved", "start", "stream", "variant", "source"),
  operator: columnsOf("operator", "seconds", "share", "bound", "times", "flops", "moved"),
  module: columnsOf("module", "seconds", "share", "bound", "times", "flops", "moved"),
};
