// The timeline: the host, streams and copies as lanes. Only what is in sight is drawn, and what is too short for a
// pixel is drawn together, so that a run of any length stays quick.

const drawTimeline = (d, all) => {
  const holder = byId("timeline");
  const rows = d.kernels;
  if (!rows.name.length) {
    holder.replaceWith(empty("This run launches no kernel, so there is no timeline."));
    return;
  }
  byId("timeline-says").textContent = d.laid_out
    ? [d.pace && `Pace: ${d.pace}.`, d.gaps && `Gaps: ${d.gaps}.`].filter(Boolean).join(" ")
    : "This method adds up kernel times: it has no host thread and no gaps.";
  const lanes = timelineLanes(d, all);
  const state = { from: 0, to: d.seconds, chosen: -1, width: 0 };
  const plot = el("div", {
    class: "plot time-plot", tabindex: "0", role: "application", "aria-describedby": "timeline-says timeline-keys",
    "aria-label": `Timeline of ${plural(rows.name.length, "kernel")} in ${duration(d.seconds)}, lanes: ${lanes.map((l) => l.name).join(", ")}`,
  });
  const seen = el("span", { class: "seen" });
  const button = (text, label, act) => {
    const made = el("button", { type: "button", "aria-label": label }, text);
    made.addEventListener("click", () => { act(); tell(seen.textContent); });
    return made;
  };
  const show = (from, to) => {
    const length = Math.min(d.seconds, Math.max(to - from, d.seconds / 1e5, 1e-8));
    state.from = Math.min(Math.max(0, from), d.seconds - length);
    state.to = state.from + length;
    draw();
  };
  const zoom = (factor, at = (state.from + state.to) / 2) => show(at - (at - state.from) * factor, at + (state.to - at) * factor);
  const pan = (share) => show(state.from + (state.to - state.from) * share, state.to + (state.to - state.from) * share);
  const draw = () => {
    if (!state.width) return;
    plot.replaceChildren(timelineChart(d, all, lanes, state));
    seen.textContent = state.to - state.from < d.seconds * 0.999 ? `${duration(state.from)} to ${duration(state.to)} of ${duration(d.seconds)}` : `all ${duration(d.seconds)}`;
  };
  const choose = (step) => {
    state.chosen = Math.min(Math.max(state.chosen + step, 0), rows.name.length - 1);
    const [start, end] = [rows.start[state.chosen], rows.start[state.chosen] + all.of(state.chosen).seconds];
    if (start < state.from || end > state.to) show((start + end - state.to + state.from) / 2, (start + end + state.to - state.from) / 2);
    else draw();
    const lines = kernelLines(d, all, state.chosen);
    const mark = plot.querySelector(".chosen");
    if (mark) showTip(lines, mark.getBoundingClientRect());
    tell(lines.filter(Boolean).join(", "));
  };
  const acts = {
    "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), "_": () => zoom(2), 0: () => show(0, d.seconds),
    ArrowLeft: () => pan(-0.25), ArrowRight: () => pan(0.25), Home: () => show(0, state.to - state.from),
    End: () => show(d.seconds - (state.to - state.from), d.seconds), ArrowDown: () => choose(1), ArrowUp: () => choose(-1),
  };
  plot.addEventListener("keydown", (e) => {
    if (!acts[e.key] || e.ctrlKey || e.metaKey || e.altKey) return;
    e.preventDefault();
    hideTip();
    acts[e.key]();
    if (!e.key.startsWith("ArrowD") && !e.key.startsWith("ArrowU")) tell(seen.textContent);
  });
  plot.addEventListener("blur", hideTip);
  timelinePointers(plot, { state, zoom, show, lines: (i) => kernelLines(d, all, i), laneWidth: () => plot.clientWidth });
  holder.append(
    el("div", { class: "tools", role: "group", "aria-label": "Zoom the timeline" },
      button("+", "Zoom in", acts["+"]), button("\u2212", "Zoom out", acts["-"]), button("0", "Show all", acts[0]),
      button("\u2190", "Earlier", acts.ArrowLeft), button("\u2192", "Later", acts.ArrowRight), seen),
    plot,
    el("figcaption", {}, legend(d.bounds.filter((_, b) => all.some((k) => k.bound === b))),
      el("p", { class: "hint", id: "timeline-keys" }, "Wheel or pinch zooms, dragging pans. With the chart in focus, + and \u2212 zoom, 0 shows all, \u2190 and \u2192 pan, \u2191 and \u2193 go from kernel to kernel. The table of kernels shows the same as text.")));
  atWidth(plot, (width) => { state.width = width; draw(); });
};

/** What launches kernels. */
const hostOf = (d) => d.card ? "host" : "runtime";
const ENTERING = -1; // instead of a kernel: what the host does before the first one

/** What a lane is called: copies, collectives (of a process group where there are several), or a stream. */
const laneName = (d, stream) => {
  if (stream.startsWith("copy")) return stream.replace("copy", "copies");
  if (stream.startsWith("comm")) return stream.replace("comm", "communication").replace("-", " ");
  return d.card ? `stream ${stream}` : "operators";
};

/** Lanes with their bars [start, end, kernel], in order of time. */
const timelineLanes = (d, all) => {
  const rows = d.kernels;
  const every = rows.name.map((_, i) => i);
  const lanes = rows.streams.map((name, s) => ({
    name: laneName(d, name), bars: every.filter((i) => rows.stream[i] === s).map((i) => [rows.start[i], rows.start[i] + all.of(i).seconds, i]).sort((a, b) => a[0] - b[0]),
  })).sort((a, b) => (a.name < b.name ? -1 : 1));
  const copies = lanes.filter((l) => l.name.startsWith("copies"));
  const exchanges = lanes.filter((l) => l.name.startsWith("communication"));
  const streams = lanes.filter((l) => !copies.includes(l) && !exchanges.includes(l));
  const entered = [0, Math.min(...rows.launch), ENTERING];
  const host = [entered, ...every.map((i) => [rows.launch[i], rows.launched[i], i])].filter(([start, end]) => end > start);
  return [...(d.laid_out && host.length ? [{ name: hostOf(d), bars: host, host: true }] : []), ...streams, ...exchanges, ...copies];
};

const kernelLines = (d, all, i) => {
  if (i === ENTERING) return [`the ${hostOf(d)} starts the run`];
  const k = all.of(i);
  const rows = d.kernels;
  return [
    rows.name[i], `${k.op}, bound by ${d.bounds[k.bound]}`,
    `${duration(k.seconds)}, ${percent(k.seconds / d.seconds)} of the run, at ${duration(rows.start[i])}`,
    d.laid_out && rows.launched[i] > rows.launch[i] ? `launched by the ${hostOf(d)} at ${duration(rows.launched[i])}` : "",
    rows.modules[rows.module[i]],
  ];
};

const timelineChart = (d, all, lanes, { from, to, chosen, width }) => {
  const tall = 30;
  const gap = 22;
  const top = 26;
  const height = top + lanes.length * (tall + gap);
  const x = linear(from, to, 0, width);
  const chart = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
  const axis = svg("g", { class: "axis" });
  const step = ticks(from, to, Math.max(2, width / 130));
  for (const t of step) {
    const label = timeLabel(t, step);
    const cut = x(t) + 4 + label.length * CHARACTER > width; // then it stands before its line
    axis.append(svg("line", { x1: x(t), x2: x(t), y1: top - 6, y2: height }),
      svg("text", { x: cut ? x(t) - 4 : Math.max(0, x(t) + 4), y: top - 12, "text-anchor": cut ? "end" : "start" }, label));
  }
  chart.append(axis);
  lanes.forEach((lane, row) => {
    const y = top + row * (tall + gap) + 14;
    chart.append(svg("text", { class: "label lane", x: 0, y: y - 4 }, lane.name));
    chart.append(svg("rect", { class: "bed", x: 0, y, width, height: tall }));
    for (const [start, end, i, many] of inSight(lane.bars, from, to, (to - from) / width)) {
      const wide = Math.max(0.6, x(Math.min(end, to)) - x(Math.max(start, from)));
      const bound = lane.host ? "host" : d.bounds[all.of(i).bound];
      const one = many === 1;
      chart.append(svg("rect", {
        class: `bar b-${bound}${i === chosen && one && !lane.host ? " chosen" : ""}`, x: x(Math.max(start, from)), y,
        width: wide > 3 ? wide - 0.7 : wide, height: tall, "data-i": one ? i : undefined, "data-many": one ? undefined : many,
      }));
      const room = Math.floor((wide - 8) / CHARACTER);
      const text = one && !lane.host ? all.of(i).op : "";
      if (text && room >= Math.min(text.length, 6)) {
        chart.append(svg("text", { class: "in-bar", x: x(Math.max(start, from)) + 5, y: y + tall / 2 + 4 }, text.length > room ? `${text.slice(0, room - 1)}…` : text));
      }
    }
  });
  return chart;
};

/** A moment with as many digits as tell one tick from the next. */
const timeLabel = (t, step) => {
  const [unit, scale] = [["s", 1], ["ms", 1e-3], ["us", 1e-6], ["ns", 1e-9]].find(([, s]) => step[step.length - 1] >= s) || ["ns", 1e-9];
  const apart = step.length > 1 ? (step[1] - step[0]) / scale : 1;
  return `${(t / scale).toFixed(Math.min(6, Math.max(0, -Math.floor(Math.log10(apart) + 1e-9))))} ${unit}`;
};

/** Bars between two moments; neighbours shorter than a pixel together as one: [start, end, first, how many]. */
function* inSight(bars, from, to, pixel) {
  let held = null;
  for (const [start, end, i] of bars) {
    if (end < from || start > to) continue;
    if (held && end - start < pixel && start - held[1] < pixel && held[1] - held[0] < 3 * pixel) {
      held = [held[0], Math.max(held[1], end), held[2], held[3] + 1];
      continue;
    }
    if (held) yield held;
    held = [start, end, i, 1];
  }
  if (held) yield held;
}

/** Wheel, drag and pinch. */
const timelinePointers = (plot, { state, zoom, show, lines }) => {
  const at = (clientX) => state.from + (clientX - plot.getBoundingClientRect().left) / state.width * (state.to - state.from);
  plot.addEventListener("wheel", (e) => {
    const before = [state.from, state.to];
    if (Math.abs(e.deltaX) > Math.abs(e.deltaY)) {
      const by = e.deltaX / state.width * (state.to - state.from);
      show(state.from + by, state.to + by);
    } else {
      zoom(Math.min(4, Math.max(0.25, Math.exp(e.deltaY / 300))), at(e.clientX));
    }
    hideTip();
    if (before[0] !== state.from || before[1] !== state.to) e.preventDefault(); // else the page scrolls
  }, { passive: false });
  const down = new Map();
  plot.addEventListener("pointerdown", (e) => {
    if (e.button) return;
    down.set(e.pointerId, e.clientX);
    plot.setPointerCapture(e.pointerId);
  });
  plot.addEventListener("pointermove", (e) => {
    if (!down.has(e.pointerId)) {
      const i = e.target.dataset.i;
      if (i !== undefined) showTip(lines(Number(i)), e.target.getBoundingClientRect());
      else if (e.target.dataset.many) showTip([`${e.target.dataset.many} kernels: zoom in`], e.target.getBoundingClientRect());
      else hideTip();
      return;
    }
    hideTip();
    const others = [...down].filter(([id]) => id !== e.pointerId);
    const last = down.get(e.pointerId);
    if (others.length) {
      const still = others[0][1];
      if (Math.abs(e.clientX - still) > 10) zoom(Math.abs(last - still) / Math.abs(e.clientX - still), at(still));
    } else {
      const by = (last - e.clientX) / state.width * (state.to - state.from);
      show(state.from + by, state.to + by);
    }
    down.set(e.pointerId, e.clientX);
  });
  const up = (e) => down.delete(e.pointerId);
  plot.addEventListener("pointerup", up);
  plot.addEventListener("pointercancel", up);
  plot.addEventListener("pointerleave", hideTip);
};
