// The page of a language model: how it generates, how requests are served, and what its steps are spent on.

const MOST_KINDS = 8; // of operators, and of kernels, that are named of a step
const spread = (t) => `${duration(t.low)} \u2013 ${duration(t.high)}`;

const drawGeneration = (d) => {
  const h = d.head;
  const [model, ...terms] = h.asked;
  document.title = `${model} · ${duration(h.token.seconds)} a token · onnxperf`;
  byId("model").textContent = model;
  byId("terms").append(...terms.map((term) => el("li", {}, term)));
  if (h.misfit) {
    byId("misfit").hidden = false;
    byId("misfit").textContent = h.misfit;
  }
  byId("time").textContent = duration(h.token.seconds);
  byId("interval").textContent = `per output token${h.of}, 80% interval ${duration(h.token.low)} to ${duration(h.token.high)}`;
  byId("range").append(rangeOf(h.token));
  byId("figures").append(
    figureOf("Time to first token", `${duration(h.first.seconds)} (${spread(h.first)})`), figureOf("Throughput", h.rate),
    figureOf(`Memory at batch ${count(d.memory.batch)}`, h.memory, meterOf(d.memory)));
  for (const step of d.steps) {
    const [bound, share] = step.shares[0];
    byId("verdict").append(el("p", { class: "limit" }, el("i", { class: `b-${bound}` }), `${step.name}: ${percent(share)} bound by ${bound}`));
  }
  byId("scope").textContent = "Times of steps are predicted, those of requests simulated on them.";
  byId("version").textContent = `Predicted by onnxperf ${d.version}, without running the model.`;
};

const drawBatches = (d) => {
  const holder = byId("batches");
  const rows = d.batches.map((b) => ({ ...b, n: b.batch, held: b.memory, now: false }));
  const able = rows.filter((r) => r.fits);
  holder.append(el("p", { class: "says" }, d.largest ? `Batch ${count(d.largest)} is the largest that fits into memory.` : "Not even batch 1 fits into memory."));
  if (able.length > 1) {
    const pair = el("div", { class: "pair" });
    holder.append(pair);
    for (const [title, of] of [["Time to first token by batch", "first"], ["Time per output token by batch", "token"]]) {
      const says = (r) => `${duration(r[of].seconds)}, 80% interval ${duration(r[of].low)} to ${duration(r[of].high)}`;
      figureIn(pair, title, (width) => batchChart(rows, width, title, duration, (r) => [r[of].low, r[of].seconds, r[of].high], says));
    }
    figureIn(holder, "Time per output token against throughput, a point for each batch that fits", (width, title) => curveChart({
      width, title, x: "output tokens/s, including prefill", label: duration,
      points: able.map((r) => ({ x: r.rate, y: r.token.seconds, low: r.token.low, high: r.token.high, name: `${r.n}`,
        says: [`Batch ${r.n}`, `${count(r.rate)} tokens/s`, `${duration(r.token.seconds)} per output token`, `80% interval ${spread(r.token)}`] })),
    }));
  }
  holder.append(plainTable("Batches", [["Batch", true], ["TTFT", true], ["80% interval", true], ["TPOT", true], ["80% interval", true],
    ["Tokens/s", true], ["Memory", true], ["Longest context", true], ["Fits"]],
  rows.map((r) => [String(r.n), duration(r.first.seconds), spread(r.first), duration(r.token.seconds), spread(r.token), count(r.rate),
    bytes(r.memory), r.context.toLocaleString("en-US"), r.fits ? "yes" : "no"]), true));
};

/** A figure with its title, drawn again at each width. */
const figureIn = (holder, title, draw) => {
  const plot = el("div", { class: "plot" });
  holder.append(el("figure", {}, el("figcaption", { class: "above" }, title), plot));
  atWidth(plot, (width) => plot.replaceChildren(draw(width, title)));
};

const drawRequests = (d) => {
  const holder = byId("requests");
  if (!d.requests.length) {
    holder.append(empty("No requests were simulated: --qps or --concurrency does so."));
    return;
  }
  holder.append(el("p", { class: "says" }, d.requests[0].says));
  if (d.requests.length === 1) {
    const [r] = d.requests;
    const cell = (t) => [duration(t.seconds), el("small", {}, ` ${spread(t)}`)];
    holder.append(plainTable("Times of requests, with 80% intervals", [["Time"], ...r.heads.map((name) => [name, true])],
      r.times.map(([name, ...each]) => [name, ...each.map((t) => el("span", {}, ...cell(t)))]), true));
    return;
  }
  figureIn(holder, "Tokens/s per GPU against tokens/s per user, a point for each number of requests at a time", (width, title) => curveChart({
    width, title, x: "tokens/s per user", label: short,
    points: d.requests.map((r) => ({ x: r.user, y: r.gpu, low: r.gpu, high: r.gpu, name: r.name,
      says: [`${r.name} requests at a time`, `${count(r.user)} tokens/s per user`, `${count(r.gpu)} tokens/s per GPU`] })),
  }));
  holder.append(plainTable("Requests by how many there are at a time", [["Requests", true], ["TTFT", true], ["80% interval", true], ["p99", true],
    ["TPOT", true], ["80% interval", true], ["p99", true], ["Tokens/s/user", true], ["Tokens/s/GPU", true]],
  d.requests.map((r) => [r.name, duration(r.first.seconds), spread(r.first), duration(r.first99), duration(r.token.seconds), spread(r.token),
    duration(r.token99), count(r.user), count(r.gpu)]), true));
};

/** A line through named points, with a band from `low` to `high`. */
const curveChart = ({ points, width, title, x: name, label }) => {
  const edge = { left: 64, right: 16, top: 20, bottom: 40 };
  const height = 280;
  const scale = (values, start, end, apart) => {
    const [least, most] = [Math.min(...values), Math.max(...values)];
    const steep = least > 0 && most > 6 * least;
    const [from, to] = steep ? [least / 1.2, most * 1.2] : [0, most * 1.12];
    return [(steep ? logarithmic : linear)(from, to, start, end), steep ? logTicks(from, to, Math.abs(end - start) / apart) : ticks(from, to, Math.abs(end - start) / apart)];
  };
  const [x, across] = scale(points.map((p) => p.x), edge.left, width - edge.right, 75);
  const [y, up] = scale(points.flatMap((p) => [p.low, p.y, p.high]), height - edge.bottom, edge.top, 36);
  const chart = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": `${title}. Arrow keys go from point to point; the table has the same figures.` });
  const axis = svg("g", { class: "axis", "aria-hidden": "true" });
  for (const v of up) {
    axis.append(svg("line", { x1: edge.left, x2: width - edge.right, y1: y(v), y2: y(v) }),
      svg("text", { x: edge.left - 8, y: y(v) + 4, "text-anchor": "end" }, v ? label(v) : "0"));
  }
  for (const v of across) axis.append(svg("text", { ...within(x(v), short(v), 0, width), y: height - 22 }, v ? short(v) : "0"));
  axis.append(svg("text", { x: width - edge.right, y: height - 4, "text-anchor": "end", class: "name" }, name));
  const line = (of) => points.map((p) => [x(p.x), y(p[of])]);
  chart.append(axis, svg("path", { class: "band", d: `${path([...line("low"), ...line("high").reverse()])}Z` }), svg("path", { class: "line", d: path(line("y")) }));
  const marks = points.map((p) => svg("circle", { class: "point", cx: x(p.x), cy: y(p.y), r: 4.5 }));
  let [right, above] = [-Infinity, 0];
  points.forEach((p) => {
    const at = within(x(p.x), p.name, edge.left, width);
    const free = Math.abs(x(p.x) - right) > 6 + p.name.length * CHARACTER || Math.abs(y(p.y) - above) > 14; // of the name before
    if (!free) return;
    chart.append(svg("text", { class: "label", ...at, y: y(p.y) - 9, "aria-hidden": "true" }, p.name));
    [right, above] = [x(p.x), y(p.y)];
  });
  chart.append(...marks);
  rove(marks, (i) => points[i].says);
  return chart;
};

const drawSpent = (d) => {
  const pair = el("div", { class: "pair" });
  byId("spent").append(pair);
  for (const step of d.steps) {
    const all = kindsOf(step);
    const row = (name, kernels, seconds) => [name, kernels ? count(kernels) : "", duration(seconds), shareCell({ seconds }, step, step.seconds)];
    const sums = summedUp(tableRows(step, all), "operator").sort((a, b) => b.seconds - a.seconds);
    const others = sums.slice(MOST_KINDS);
    const rows = sums.slice(0, MOST_KINDS).map((s) => row(s.operator, s.times, s.seconds));
    if (others.length) rows.push(row(`${plural(others.length, "other")}`, sum(others.map((s) => s.times)), sum(others.map((s) => s.seconds))));
    if (step.rest / step.seconds >= 0.0005) rows.push(row(step.host, 0, step.rest));
    const largest = all.slice(0, MOST_KINDS).map((k) => [nameCell(k.name), count(k.kernels), duration(k.total), shareCell({ seconds: k.total }, step, step.seconds)]);
    pair.append(el("div", {}, el("h3", {}, step.title), el("p", { class: "says" }, `${duration(step.seconds)}, 80% interval ${duration(step.low)} to ${duration(step.high)}.`),
      plainTable(`Operators of the ${step.name}`, [["Operator"], ["Kernels", true], ["Time", true], ["Share", true]], rows, true),
      el("h3", {}, "Largest kernels"),
      plainTable(`Largest kernels of the ${step.name}`, [["Such as"], ["Kernels", true], ["Time", true], ["Share", true]], largest, true)));
  }
};

/** The sections of one step, which is chosen above them. */
const drawSteps = (d) => {
  const show = (step) => {
    const all = kindsOf(step);
    for (const id of ["bound", "roofline", "timeline", "table"]) byId(id).replaceChildren();
    hideTip();
    byId("step-says").textContent = `${step.title}: ${duration(step.seconds)}.`;
    drawBound(step);
    drawRoofline(step, all);
    drawTimeline(step, all);
    drawTable(step, all);
  };
  d.steps.forEach((step, i) => {
    const input = el("input", { type: "radio", name: "step", value: step.name, id: `step-${i}`, checked: !i });
    input.addEventListener("change", () => { show(step); tell(byId("step-says").textContent); });
    byId("steps").append(el("span", {}, input, el("label", { for: `step-${i}` }, step.name)));
  });
  show(d.steps[0]);
};

const drawHeld = (d) => {
  const holder = byId("memory");
  const { held, capacity, fits, parts, batch } = d.memory;
  holder.append(el("p", { class: "says" }, `Batch ${batch} takes ${bytes(held)} of ${bytes(capacity)}: it ${fits ? `fits, ${bytes(capacity - held)} are free` : "does not fit"}. ${d.largest ? `The largest batch that fits is ${count(d.largest)}.` : ""} A token takes ${bytes(d.memory.token)} of KV cache.`), ...stackOf(parts, held));
};

(() => {
  const d = JSON.parse(byId("data").textContent);
  drawGeneration(d);
  drawNav();
  drawBatches(d);
  drawRequests(d);
  drawSpent(d);
  drawSteps(d);
  drawHeld(d);
  byId("notes").append(el("ul", { class: "notes" }, ...d.notes.map((note) => el("li", {}, note))));
})();
