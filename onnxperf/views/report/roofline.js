// The roofline: every kernel by its arithmetic intensity and its FLOP/s, under the roofs of the card.

const DOTS = 1500; // kinds of kernels drawn, those that take most time

const drawRoofline = (d, all) => {
  const holder = byId("roofline");
  const drawn = all.filter((k) => k.flops > 0 && k.moved > 0).slice(0, DOTS);
  const moving = all.filter((k) => !(k.flops > 0 && k.moved > 0)).slice(0, DOTS);
  if (!all.length) {
    holder.replaceWith(empty("This run launches no kernel, so there is no roofline."));
    return;
  }
  const [dram, near] = d.roofs.memory;
  const top = d.roofs.compute[0];
  const ridge = top && top[1] / dram[1];
  byId("roofline-says").textContent = rooflineInWords(d, all, drawn, moving, ridge);
  const used = d.bounds.filter((_, b) => all.some((k) => k.bound === b));
  const plot = el("div", { class: "plot" });
  holder.append(plot, el("figcaption", {}, legend(used.map((b) => b)),
    el("p", { class: "hint" }, "Each dot stands for all kernels of equal work; its area is their share of the time. Tab to the chart, then the arrow keys go from dot to dot.")));
  atWidth(plot, (width) => plot.replaceChildren(rooflineChart(d, drawn, moving, { dram, near, ridge, width })));
};

const rooflineInWords = (d, all, drawn, moving, ridge) => {
  const share = (kernels) => percent(sum(kernels.map((k) => k.total)) / sum(all.map((k) => k.total)));
  const left = drawn.filter((k) => k.flops / k.moved < ridge);
  const parts = [];
  if (drawn.length) {
    parts.push(`Kernels left of the ridge, at ${digits(ridge)} FLOP/byte, are memory-bound at peak rates; they take ${share(left)} of kernel time. Kernels with data in ${d.roofs.memory[1][0]} may lie above that roof.`);
  }
  if (moving.length) parts.push(`Kernels without arithmetic, ${share(moving)}, are shown below the axis.`);
  if (all.length > DOTS) parts.push(`Shown are the ${DOTS.toLocaleString("en-US")} kinds of kernels that take most time.`);
  return parts.join(" ");
};

const kindLines = (d, k) => [
  k.kernels > 1 ? `${plural(k.kernels, "kernel")} ${k.op}` : k.name,
  `${duration(k.total)}, ${percent(k.total / d.seconds)} of the run, bound by ${d.bounds[k.bound]}`,
  k.kernels > 1 ? `each ${duration(k.seconds)}, such as ${k.name}` : k.op,
  k.flops ? `${flopRate(k.flops / k.seconds)}${k.unit ? ` on ${k.unit}` : ""}` : "",
  k.moved ? `${k.flops ? `${digits(k.flops / k.moved)} FLOP/byte, ` : ""}${bytes(k.moved)} read and written` : "",
];

const rooflineChart = (d, drawn, moving, { dram, near, ridge, width }) => {
  const narrow = width < 560;
  const edge = { left: narrow ? 44 : 64, right: 12, top: 14, bottom: 40 };
  const strip = moving.length ? 46 : 0;
  const height = Math.round(Math.min(480, Math.max(300, width * 0.5))) + strip;
  const floor = height - edge.bottom - strip;
  const intensity = drawn.map((k) => k.flops / k.moved);
  const rates = drawn.map((k) => k.flops / k.seconds);
  const peak = Math.max(...d.roofs.compute.map((r) => r[1]), 1e9);
  const from = Math.min(...intensity, ridge ? ridge / 30 : 0.1) / 2;
  const to = Math.max(...intensity, ridge || 100) * 3;
  const low = Math.min(...rates, peak / 100) / 2;
  const x = logarithmic(from, to, edge.left, width - edge.right);
  const y = logarithmic(low, peak * 2, floor, edge.top);
  const chart = svg("svg", {
    width, height, viewBox: `0 0 ${width} ${height}`, role: "group",
    "aria-label": `Roofline. ${byId("roofline-says").textContent} Arrow keys go from kernel to kernel, the most time first.`,
  });
  const grid = svg("g", { class: "axis", "aria-hidden": "true" });
  const steps = decades(from, to, narrow ? 5 : 8);
  powers(steps).forEach((label, i) => {
    const at = x(steps[i]);
    grid.append(svg("line", { x1: at, x2: at, y1: edge.top, y2: floor }), svg("text", { ...within(at, label, 0, width), y: floor + 16 }, label));
  });
  for (const v of decades(low, peak * 2, 6)) {
    const [n, unit] = flopRate(v).split("\u00a0");
    grid.append(svg("line", { x1: edge.left, x2: width - edge.right, y1: y(v), y2: y(v) }),
      svg("text", { x: edge.left - 6, y: y(v) + 4, "text-anchor": "end" }, `${n}${unit[0]}`));
  }
  grid.append(svg("text", { x: width - edge.right, y: floor + 33, "text-anchor": "end", class: "name" }, "FLOP/byte"),
    svg("text", { x: edge.left + 4, y: edge.top - 3, class: "name" }, "FLOP/s"));
  chart.append(grid, rooflineRoofs(d, { x, y, from, to, low, dram, near, ridge, edge, floor, width, narrow }));
  const dots = svg("g", {});
  const area = Math.min(width, 900) ** 2 / 160; // of a kernel that takes the whole run
  const radius = (k) => Math.max(3.5, Math.sqrt(area * k.total / d.seconds / Math.PI));
  const marks = drawn.map((k, i) => svg("circle", { class: `dot b-${d.bounds[k.bound]}`, cx: x(intensity[i]), cy: y(rates[i]), r: radius(k) }));
  let at = edge.left;
  const total = sum(moving.map((k) => k.total));
  for (const k of moving) {
    const wide = Math.max(1, (width - edge.left - edge.right) * k.total / total);
    marks.push(svg("rect", { class: `dot b-${d.bounds[k.bound]}`, x: at, y: height - 26, width: Math.max(1, wide - 1), height: 14, rx: 2 }));
    at += wide;
  }
  if (strip) chart.append(svg("text", { class: "label", x: edge.left, y: height - 32, "aria-hidden": "true" }, "no arithmetic: data movement only, by time"));
  const order = [...drawn, ...moving];
  dots.append(...marks);
  chart.append(dots);
  const ranked = order.map((k, i) => [k, marks[i]]).sort((a, b) => b[0].total - a[0].total);
  rove(ranked.map(([, mark]) => mark), (i) => kindLines(d, ranked[i][0]));
  return chart;
};

/** The roofs: diagonals for bytes/s, horizontals for FLOP/s, and the ridge at which the first two meet. */
const rooflineRoofs = (d, { x, y, from, to, low, dram, near, ridge, edge, floor, width, narrow }) => {
  const roofs = svg("g", { class: "roofs", "aria-hidden": "true" });
  if (!ridge) return roofs;
  const top = d.roofs.compute[0][1];
  const diagonal = ([name, rate], more) => {
    const start = Math.max(from, low / rate);
    const end = top / rate;
    roofs.append(svg("path", { class: `roof ${more}`, d: path([[x(start), y(start * rate)], [x(end), y(top)]]) }));
    const at = start * (end / start) ** (narrow ? 0.45 : 0.58);
    const slope = Math.atan2(y(at * 10 * rate) - y(at * rate), x(at * 10) - x(at)) * 180 / Math.PI;
    roofs.append(svg("text", { class: "label", transform: `translate(${x(at)} ${y(at * rate) - 6}) rotate(${slope.toFixed(2)})` }, `${name} ${byteRate(rate)}`));
  };
  if (near[1] > dram[1]) diagonal(near, "faint");
  diagonal(dram, "");
  let last = -Infinity;
  d.roofs.compute.forEach(([name, rate], i) => {
    roofs.append(svg("path", { class: `roof ${i ? "faint" : ""}`, d: path([[x(Math.max(from, rate / Math.max(near[1], dram[1]))), y(rate)], [x(to), y(rate)]]) }));
    const line = y(rate) + (i ? 14 : -6); // the first above its roof, the others below theirs
    if (line < last + 13) return;
    roofs.append(svg("text", { class: "label", x: width - edge.right, y: last = line, "text-anchor": "end" }, `${name} ${flopRate(rate)}`));
  });
  roofs.append(svg("path", { class: "ridge", d: path([[x(ridge), y(top)], [x(ridge), floor]]) }),
    svg("circle", { class: "ridge-point", cx: x(ridge), cy: y(top), r: 3.5 }),
    svg("text", { class: "label", x: x(ridge) - 5, y: floor - 7, "text-anchor": "end" }, `ridge ${digits(ridge)}`));
  return roofs;
};
