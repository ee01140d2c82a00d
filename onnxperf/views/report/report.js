// The page of a prediction: the answer in words, then a drawing for each section.

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
  byId("figures").append(figureOf("Throughput", h.rate), figureOf("Memory", h.memory, meterOf(d.memory)));
  byId("range").append(rangeOf(d));
  if (h.limit) byId("verdict").append(el("p", { class: "limit" }, el("i", { class: `b-${d.shares[0][0]}` }), h.limit));
  if (h.best) {
    const more = h.others ? [" ", el("a", { href: "#what-if-h" }, `${h.others} more`)] : [];
    byId("verdict").append(el("p", { class: "best" }, ...marked(h.best), ...more));
  }
  byId("verdict").append(el("p", { class: "hint" }, `Accuracy: ${d.accuracy}`));
  byId("scope").textContent = `${d.scope}. Inputs: ${d.inputs.join(", ")}.`;
  byId("version").textContent = `Predicted by onnxperf ${d.version}, without running the model.`;
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

(() => {
  const d = JSON.parse(byId("data").textContent);
  const all = kindsOf(d);
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
