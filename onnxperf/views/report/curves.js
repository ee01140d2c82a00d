// Memory over time, and latency and throughput against the batch.

/** Parts of memory as a bar with its legend. */
const stackOf = (parts, held) => {
  const bar = el("div", { class: "stack", "aria-hidden": "true" });
  const shade = (name) => `m-${name.split(" ").pop()}`;
  parts.forEach(([name, size]) => {
    const part = el("i", { class: shade(name) });
    part.style.flexGrow = String(size / Math.max(held, 1));
    bar.append(part);
  });
  return [bar, el("ul", { class: "legend" }, ...parts.map(([name, size]) => el("li", {}, el("i", { class: shade(name) }), `${name} ${bytes(size)}`)))];
};

const drawMemory = (d) => {
  const holder = byId("memory");
  const m = d.memory;
  const free = Math.max(0, m.capacity - m.held);
  const share = m.held / m.capacity;
  holder.append(
    el("p", { class: "says" }, `${d.card ? "GPU memory" : "Memory"} use is ${bytes(m.held)} of ${bytes(m.capacity)}, ${percent(share)}: it ${m.fits ? `fits, ${bytes(free)} are free` : "does not fit"}.${m.host ? ` Host memory: ${bytes(m.host)}.` : ""}`),
    ...stackOf(m.parts, m.held));
  if (!m.peak || !d.kernels.name.length) {
    holder.append(empty("This run has no kernels, so there is no memory timeline."));
    return;
  }
  const at = m.alive.indexOf(Math.max(...m.alive));
  const title = `Live activation memory over time, peak ${bytes(m.alive[at])} at ${duration(m.times[at])}`;
  const plot = el("div", { class: "plot" });
  holder.append(el("figure", {}, el("figcaption", { class: "above" }, title), plot));
  atWidth(plot, (width) => plot.replaceChildren(memoryChart(d, width, title, at)));
};

const memoryChart = (d, width, title, at) => {
  const m = d.memory;
  const edge = { left: 64, right: 12, top: 12, bottom: 26 };
  const height = 200;
  const most = m.alive[at] * 1.08;
  const x = linear(0, d.seconds, edge.left, width - edge.right);
  const y = linear(0, most, height - edge.bottom, edge.top);
  const points = [];
  m.times.forEach((t, i) => {
    if (i) points.push([x(t), y(m.alive[i - 1])]);
    points.push([x(t), y(m.alive[i])]);
  });
  points.push([x(d.seconds), y(m.alive[m.alive.length - 1])]);
  const chart = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title });
  const axis = svg("g", { class: "axis" });
  for (const v of ticks(0, most, 4)) {
    axis.append(svg("line", { x1: edge.left, x2: width - edge.right, y1: y(v), y2: y(v) }),
      svg("text", { x: edge.left - 8, y: y(v) + 4, "text-anchor": "end" }, bytes(v)));
  }
  const step = ticks(0, d.seconds, Math.max(2, width / 140));
  for (const t of step) {
    const label = timeLabel(t, step);
    axis.append(svg("text", { ...within(x(t), label, edge.left, width), y: height - 6 }, label));
  }
  const base = y(0);
  chart.append(axis,
    svg("path", { class: "area", d: `${path([[points[0][0], base], ...points, [points[points.length - 1][0], base]])}Z` }),
    svg("path", { class: "line", d: path(points) }));
  const mark = svg("circle", { class: "point", cx: x(m.times[at]), cy: y(m.alive[at]), r: 4 });
  chart.append(mark);
  const hover = svg("line", { class: "hover", y1: edge.top, y2: base, visibility: "hidden" });
  chart.append(hover);
  chart.addEventListener("pointermove", (e) => {
    const box = chart.getBoundingClientRect();
    const t = (e.clientX - box.left - edge.left) / (width - edge.left - edge.right) * d.seconds;
    const i = m.times.findLastIndex((start) => start <= t);
    if (i < 0 || t > d.seconds) return;
    add(hover, { x1: x(t), x2: x(t), visibility: "visible" }, []);
    showTip([`${bytes(m.alive[i])} live`, `from ${duration(m.times[i])}`], { left: e.clientX, width: 0, top: box.top + y(m.alive[i]), bottom: box.top + y(m.alive[i]) });
  });
  chart.addEventListener("pointerleave", () => { hover.setAttribute("visibility", "hidden"); hideTip(); });
  return chart;
};

const drawBatch = (d) => {
  const holder = byId("batch");
  const b = d.batches;
  const rows = b.batch.map((n, i) => ({
    n, seconds: b.seconds[i], low: b.low[i], high: b.high[i], held: b.held[i], fits: b.fits[i],
    rate: n / b.seconds[i], least: n / b.high[i], most: n / b.low[i], now: n === d.batch,
  }));
  if (rows.length < 2) {
    const why = b.fixed || (b.fits[0] ? "no other batch was tried" : "it does not fit into memory");
    holder.append(empty(`Only batch ${d.batch} is shown: ${why}.`));
    return;
  }
  const able = rows.filter((r) => r.fits);
  const best = able.reduce((a, r) => (r.rate > a.rate ? r : a), able[0]);
  const over = rows.find((r) => !r.fits);
  holder.append(el("p", { class: "says" }, [
    best && `Highest throughput at batch ${best.n}: ${count(best.rate)} samples/s, ${duration(best.seconds)} per run.`,
    over && `Batch ${over.n} takes ${bytes(over.held)}, which does not fit into memory.`,
  ].filter(Boolean).join(" ")));
  const charts = [
    ["Latency by batch", duration, (r) => [r.low, r.seconds, r.high], (r) => `${duration(r.seconds)}, 80% interval ${duration(r.low)} to ${duration(r.high)}`],
    ["Throughput by batch, samples/s", short, (r) => [r.least, r.rate, r.most], (r) => `${count(r.rate)} samples/s, 80% interval ${count(r.least)} to ${count(r.most)}`],
  ];
  const pair = el("div", { class: "pair" });
  holder.append(pair);
  for (const [title, label, of, says] of charts) {
    const plot = el("div", { class: "plot" });
    pair.append(el("figure", {}, el("figcaption", { class: "above" }, title), plot));
    atWidth(plot, (width) => plot.replaceChildren(batchChart(rows, width, title, label, of, says)));
  }
  holder.append(el("details", {}, el("summary", {}, "The same as a table"), plainTable("Latency, throughput and memory by batch",
    [["Batch", true], ["Latency", true], ["80% interval", true], ["Samples/s", true], ["Memory", true], ["Fits"]],
    rows.map((r) => [String(r.n), duration(r.seconds), `${duration(r.low)} \u2013 ${duration(r.high)}`, count(r.rate), bytes(r.held), r.fits ? "yes" : "no"]), true)));
};

/** Round values on a logarithmic axis, so many at most. */
const logTicks = (from, to, most) => {
  const round = [1, 2, 5].flatMap((n) => decades(from / n, to / n, 20).map((v) => v * n));
  return round.length > most ? decades(from, to, most) : round.length < 3 ? ticks(from, to, 4) : round;
};

const batchChart = (rows, width, title, label, of, says) => {
  const edge = { left: 60, right: 16, top: 12, bottom: 40 };
  const height = 240;
  const values = rows.flatMap(of);
  const [from, to] = [Math.min(...values) / 1.15, Math.max(...values) * 1.15];
  const x = logarithmic(rows[0].n, rows[rows.length - 1].n, edge.left + 8, width - edge.right - 4);
  const y = logarithmic(from, to, height - edge.bottom, edge.top);
  const chart = svg("svg", {
    width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": `${title}. Arrow keys go from batch to batch; a table with the same figures is below.`,
  });
  const axis = svg("g", { class: "axis", "aria-hidden": "true" });
  for (const v of logTicks(from, to, 7)) {
    axis.append(svg("line", { x1: edge.left, x2: width - edge.right, y1: y(v), y2: y(v) }),
      svg("text", { x: edge.left - 8, y: y(v) + 4, "text-anchor": "end" }, label(v)));
  }
  const every = Math.ceil(rows.length / Math.max(2, width / 46));
  rows.forEach((r, i) => { if (i % every === 0) axis.append(svg("text", { x: x(r.n), y: height - 22, "text-anchor": "middle" }, String(r.n))); });
  axis.append(svg("text", { x: width - edge.right, y: height - 4, "text-anchor": "end", class: "name" }, "batch"));
  const line = (at) => rows.map((r) => [x(r.n), y(of(r)[at])]);
  chart.append(axis,
    svg("path", { class: "band", d: `${path([...line(0), ...line(2).reverse()])}Z` }),
    svg("path", { class: "line", d: path(line(1)) }));
  const marks = rows.map((r) => svg("circle", { class: `point${r.fits ? "" : " hollow"}${r.now ? " now" : ""}`, cx: x(r.n), cy: y(of(r)[1]), r: r.now ? 6 : 4.5 }));
  chart.append(...marks);
  rove(marks, (i) => [`Batch ${rows[i].n}${rows[i].now ? " (this prediction)" : ""}`, ...says(rows[i]).split(", "), `${bytes(rows[i].held)} of memory${rows[i].fits ? "" : ": does not fit"}`]);
  return chart;
};
