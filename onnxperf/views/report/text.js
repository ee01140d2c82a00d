"use strict";

// Quantities as the command line writes them, and elements whose text is never read as markup.

const inUnits = (value, units) => {
  for (const [unit, scale] of units) {
    if (value >= scale * 0.9995) {
      const n = value / scale;
      return (n < 1000 ? digits(n) : Math.round(n).toLocaleString("en-US")) + "\u00a0" + unit;
    }
  }
  return "";
};
const digits = (value, most = 3) => String(Number(value.toPrecision(most)));
const duration = (s) => inUnits(s, [["s", 1], ["ms", 1e-3], ["us", 1e-6]]) || (s > 0 ? digits(s * 1e9) + "\u00a0ns" : "0");
const bytes = (n) => inUnits(n, [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) || Math.round(n) + "\u00a0B";
const flopRate = (n) => inUnits(n, [["PFLOP/s", 1e15], ["TFLOP/s", 1e12], ["GFLOP/s", 1e9], ["MFLOP/s", 1e6]]) || digits(n) + "\u00a0FLOP/s";
const byteRate = (n) => inUnits(n, [["TB/s", 1e12], ["GB/s", 1e9], ["MB/s", 1e6]]) || digits(n) + "\u00a0B/s";
const flops = (n) => inUnits(n, [["PFLOP", 1e15], ["TFLOP", 1e12], ["GFLOP", 1e9], ["MFLOP", 1e6], ["kFLOP", 1e3]]) || Math.round(n) + "\u00a0FLOP";
const short = (n) => inUnits(n, [["G", 1e9], ["M", 1e6], ["k", 1e3]]).replace("\u00a0", "") || digits(n);
const count = (n) => n >= 100 ? Math.round(n).toLocaleString("en-US") : digits(n);
const percent = (share) => share >= 0.0995 ? Math.round(share * 100) + "%" : digits(share * 100, 2) + "%";
const plural = (n, one, many = one + "s") => `${n.toLocaleString("en-US")} ${n === 1 ? one : many}`;
const sum = (values) => values.reduce((a, b) => a + b, 0);

const byId = (id) => document.getElementById(id);

const add = (made, attributes, children) => {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...children.filter((c) => c !== null && c !== undefined && c !== ""));
  return made;
};
/** An HTML element; children are elements or plain text. */
const el = (name, attributes = {}, ...children) => add(document.createElement(name), attributes, children);
/** An SVG element. */
const svg = (name, attributes = {}, ...children) =>
  add(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);

/** Options of the command line as code, what follows them as it is. */
const marked = (text) => {
  const options = /^--[^:,]*/.exec(text)?.[0] ?? "";
  const each = options.split(/ (?=--)/).flatMap((option) => [" ", el("span", { class: "whole" }, option)]).slice(1);
  return options ? [el("code", {}, ...each), text.slice(options.length)] : [text];
};
/** The start and the end of a long name. */
const shortened = (name, most = 40) => name.length <= most ? name : `${name.slice(0, 12)}…${name.slice(13 - most)}`;

/** Tell those who listen rather than look. */
const tell = (text) => { byId("told").textContent = text; };
