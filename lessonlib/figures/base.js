// The kit that every figure shares: number formats, SVG text, scales, controls, and the redraw.

const fixed = (x, digits = 0) => {
  const [whole, rest] = x.toFixed(digits).split(".");
  return whole.replace(/\B(?=(\d{3})+$)/g, ",") + (rest ? "." + rest : "");
};
const three = (x) => fixed(x, x === 0 || x >= 100 ? 0 : x >= 10 ? 1 : x >= 1 ? 2 : 3);
const milliseconds = (t) => (t < 1 ? three(t * 1e3) + " ms" : three(t) + " s");
const gigabytes = (n) => fixed(n / 1e9, 1) + " GB";

const escaped = (s) => String(s).replace(/[&<>"]/g, (c) => `&#${c.charCodeAt(0)};`);
const short = (v) => (typeof v === "number" ? +v.toFixed(2) : escaped(v));
const tag = (name, attributes, body = "") =>
  `<${name}${Object.entries(attributes).map(([k, v]) => ` ${k}="${short(v)}"`).join("")}>${body}</${name}>`;
const rect = (x, y, width, height, look) => tag("rect", { x, y, width: Math.max(0, width), height: Math.max(0, height), class: look });
const line = (x1, y1, x2, y2, look) => tag("line", { x1, y1, x2, y2, class: look });
const dot = (cx, cy, r, look) => tag("circle", { cx, cy, r, class: look });
const text = (x, y, s, look = "", anchor = "start") => tag("text", { x, y, class: look, "text-anchor": anchor }, escaped(s));
const path = (points, look) => tag("path", { d: "M" + points.map((p) => p.map((v) => v.toFixed(1)).join(" ")).join("L"), class: look });

// About how wide words are at 12 px; fonts differ.
const wordsWidth = (words) => [...words].reduce((sum, letter) => sum + ("fijlrt .,:".includes(letter) ? 4.5 : 7.3), 0);

// Entries of a key, each a coloured square and its words, side by side; wraps to the width.
const keys = (x, y, width, entries) => {
  let [svg, left, top] = ["", x, y];
  for (const [look, words] of entries) {
    const wide = 24 + wordsWidth(words);
    if (left > x && left + wide > x + width + 16) [left, top] = [x, top + 17];
    svg += rect(left, top - 9, 10, 10, look) + text(left + 14, top, words);
    left += wide;
  }
  return svg;
};

const linear = (from, to, left, right) => (v) => left + ((v - from) / (to - from)) * (right - left);
const logarithmic = (from, to, left, right) => (v) => left + (Math.log(v / from) / Math.log(to / from)) * (right - left);
// Round tick values from 0 to at least `top`, about n of them.
const ticks = (top, n = 4) => {
  const rough = Math.max(top, 1e-12) / n;
  const power = 10 ** Math.floor(Math.log10(rough) + 1e-9);
  const step = power * [1, 2, 2.5, 5, 10].find((m) => m * power >= rough * 0.999);
  return Array.from({ length: Math.ceil(top / step - 1e-9) + 1 }, (_, i) => i * step);
};

// --- controls: native inputs with a label and a live reading ---------------------------------------

const node = (name, look, words = "") => Object.assign(document.createElement(name), { className: look, textContent: words });

const rangeControl = (control, data, state, changed) => {
  const box = node("label", "control range");
  const name = node("span", "name", control.label);
  const reading = name.appendChild(node("b", ""));
  const input = Object.assign(node("input", ""), { type: "range", min: 0, step: 1 });
  input.setAttribute("aria-label", control.label);
  box.append(name, input);
  let stops = [];
  input.addEventListener("input", () => {
    state[control.key] = stops[+input.value];
    changed();
  });
  const refresh = () => {
    stops = control.stops(data, state);
    let index = stops.indexOf(state[control.key]);
    // Where a stop is gone (a smaller B_max), the next lower one takes its place.
    if (index < 0) index = Math.max(0, stops.filter((stop) => stop < state[control.key]).length - 1);
    state[control.key] = stops[index];
    input.max = stops.length - 1;
    input.value = index;
    reading.textContent = control.show(stops[index]);
    input.setAttribute("aria-valuetext", reading.textContent);
  };
  return [box, refresh];
};

const choiceControl = (control, data, state, changed) => {
  const box = node("fieldset", "control");
  const options = node("div", "options");
  const group = control.key + Math.random();
  const inputs = control.options(data).map(([value, words]) => {
    const label = options.appendChild(node("label", ""));
    const input = Object.assign(node("input", ""), { type: "radio", name: group, value });
    label.append(input, node("span", "", words));
    input.addEventListener("change", () => {
      state[control.key] = value;
      changed();
    });
    return [input, value];
  });
  box.append(node("legend", "name", control.label), options);
  return [box, () => inputs.forEach(([input, value]) => (input.checked = state[control.key] === value))];
};

const buttonControl = (control, data, state, changed) => {
  const box = node("div", "control");
  const button = box.appendChild(Object.assign(node("button", "", control.button), { type: "button" }));
  button.addEventListener("click", () => {
    control.press(state, data);
    changed();
  });
  return [box, () => (button.disabled = control.off ? control.off(state, data) : false)];
};

const makeControl = (control, ...rest) =>
  (control.button ? buttonControl : control.options ? choiceControl : rangeControl)(control, ...rest);

// --- the figure: controls, readings, picture, and the sentence below it ----------------------------

const start = (root, figure) => {
  root.dataset.live = "";
  const data = JSON.parse(root.querySelector('script[type="application/json"]').textContent);
  const state = { ...data.state };
  const live = node("div", "live");
  const controls = node("div", "controls");
  controls.setAttribute("role", "group");
  controls.setAttribute("aria-label", "Controls: " + data.title);
  const readings = node("dl", "readings");
  const stage = node("div", "stage");
  const picture = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  picture.setAttribute("role", "img");
  picture.setAttribute("aria-label", data.alt);
  stage.append(picture);
  const says = node("p", "says");
  says.setAttribute("aria-live", "polite");
  const sentence = says.appendChild(node("span", ""));
  live.append(node("p", "title", data.title), node("p", "idea", data.idea), controls, readings, stage, says);

  let width = 0;
  const redraw = () => {
    refreshes.forEach((refresh) => refresh());
    const drawn = figure.draw(data, state, width);
    picture.setAttribute("width", width);
    picture.setAttribute("height", drawn.height);
    picture.innerHTML = tag("title", {}, escaped(data.title)) + drawn.svg;
    drawn.readings.forEach(([key, label, words, value], i) => {
      const box = readings.children[i] || readings.appendChild(node("div", ""));
      const [term, shown] = box.children.length ? box.children : [box.appendChild(node("dt", "")), box.appendChild(node("dd", ""))];
      term.textContent = label;
      shown.textContent = words;
      Object.assign(shown.dataset, { reading: key, value: value === undefined ? words : value });
    });
    sentence.textContent = drawn.says;
    says.classList.toggle("differs", Boolean(drawn.differs));
  };
  const made = figure.controls.map((control) => makeControl(control, data, state, redraw));
  const refreshes = made.map(([, refresh]) => refresh);
  controls.append(...made.map(([box]) => box));

  root.querySelector("img").replaceWith(live);
  const fit = () => {
    const room = Math.floor(stage.clientWidth) || 640;
    if (room === width) return;
    width = room;
    redraw();
  };
  fit();
  new ResizeObserver(fit).observe(stage);
};
