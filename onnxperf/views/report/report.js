// The page: the answer in words, then a drawing for each section.

const drawAnswer = (d) => {
  const h = d.head;
  const [model, ...terms] = h.asked;
  document.title = `${model} · ${h.time} · onnxperf`;
  byId("model").textContent = model;
  byId("terms").append(...terms.map((term) => el("li", {}, term)));
  if (h.misfit) {
    byId("misfit").hidden = false;
    byId("misfit").textContent = `DOES NOT FIT: ${h.misfit}`;
  }
  byId("time").textContent = h.time;
  byId("interval").textContent = h.interval;
  byId("rate").textContent = h.rate;
  byId("held").textContent = h.memory;
  const meter = el("i", { class: d.memory.fits ? "" : "over" });
  meter.style.width = `${Math.min(100, Math.max(0.5, d.memory.held / d.memory.capacity * 100)).toFixed(2)}%`;
  byId("meter").append(el("span", { class: "meter", "aria-hidden": "true" }, meter));
  byId("range").append(rangeOf(d));
  if (h.limit) byId("verdict").append(el("p", { class: "limit" }, el("i", { class: `b-${d.shares[0][0]}` }), h.limit));
  if (h.best) {
    const more = h.others ? [" ", el("a", { href: "#what-if-h" }, `${h.others} more`)] : [];
    byId("verdict").append(el("p", { class: "best" }, ...marked(h.best), ...more));
  }
  byId("scope").textContent = `${d.scope}. Inputs: ${d.inputs.join(", ")}.`;
  byId("version").textContent = `Predicted by onnxperf ${d.version}, without running the model.`;
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

const drawWhatIfs = (d) => {
  const holder = byId("what-if");
  const found = d.what_ifs.changes.map(([what, seconds, low, high, most, why]) =>
    ({ what, seconds, low, high, most, why, gain: seconds ? d.seconds / seconds : null }));
  const can = found.filter((c) => c.gain);
  const faster = can.filter((c) => c.gain >= 1.005);
  const others = can.filter((c) => c.gain < 1.005);
  const not = found.filter((c) => !c.gain);
  if (d.what_ifs.why) {
    holder.append(empty(`No changes were tried: ${d.what_ifs.why}.`));
    return;
  }
  const widest = Math.max(...can.map((c) => c.gain), 1);
  const row = (c) => {
    const bar = el("i", { class: "gain" });
    bar.style.width = `${(Math.max(0, Math.log(c.gain)) / (Math.log(widest) || 1) * 100).toFixed(1)}%`;
    return [
      el("span", { class: "change" }, ...marked(c.what), c.why ? el("small", {}, c.why) : null),
      el("span", { class: "with-gain" }, `${c.most ? "up to " : ""}${c.gain.toFixed(2)}x`, bar), duration(c.seconds),
      c.low === null ? "" : `${duration(c.low)} \u2013 ${duration(c.high)}`,
    ];
  };
  const heads = [["Change"], ["Speedup", true], ["Time", true], ["80% interval", true]];
  holder.append(el("p", { class: "says" }, "Each line is a separate prediction for the same number of samples."),
    faster.length ? plainTable("Changes that make it faster", heads, faster.map(row), true) : empty("No change makes it faster."));
  if (others.length) {
    holder.append(el("details", {}, el("summary", {}, `${plural(others.length, "change")} that ${others.length === 1 ? "makes" : "make"} it slower or no faster`),
      plainTable("Changes that make it slower or no faster", heads, others.map(row), true)));
  }
  if (not.length) {
    holder.append(el("details", {}, el("summary", {}, `${plural(not.length, "change")} that can't be applied`),
      el("ul", { class: "notes" }, ...not.map((c) => el("li", {}, ...marked(c.what), el("small", {}, c.why))))));
  }
};

const drawNotes = (d) => {
  const holder = byId("notes");
  const notes = d.notes.filter(([code]) => code !== "not-fused");
  const near = d.notes.filter(([code]) => code === "not-fused");
  const item = ([code, message, nodes, count]) => el("li", {}, el("strong", {}, code), ` ${message}`,
    nodes.length ? el("small", { dir: "auto" }, nodes.join(", ") + (count > nodes.length ? ` and ${count - nodes.length} more` : "")) : null);
  holder.append(notes.length ? el("ul", { class: "notes" }, ...notes.map(item)) : empty("No notes."));
  if (near.length) holder.append(el("details", {}, el("summary", {}, `${plural(near.length, "note")} on missed fusions`), el("ul", { class: "notes" }, ...near.map(item))));
  holder.append(el("details", {}, el("summary", {}, "Run summary"),
    el("dl", { class: "facts" }, ...d.facts.map(([label, text]) => el("div", {}, el("dt", {}, label), el("dd", {}, text))))));
};

const drawNav = () => {
  byId("nav").append(el("ul", {}, ...[...document.querySelectorAll("main > section")].map((section) => {
    const head = section.querySelector("h2");
    return el("li", {}, el("a", { href: `#${head.id}` }, head.textContent));
  })));
};

(() => {
  const d = JSON.parse(byId("data").textContent);
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
  drawAnswer(d);
  drawNav();
  drawBound(d);
  drawRoofline(d, all);
  drawTimeline(d, all);
  drawTable(d, all);
  drawMemory(d);
  drawBatch(d);
  drawWhatIfs(d);
  drawNotes(d);
})();
