"use strict";
// All text that comes from runs is put in place with textContent: class names may hold anything.
const make = (tag, attributes = {}, ...children) => {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") node.textContent = value; else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
};
// a line may break after the plus of er+evidence
const breakable = (text) => text.split(/(?<=\+)/).flatMap((part, i) => i ? [make("wbr"), part] : [part]);
const dataOf = (node) => JSON.parse(node.querySelector("script[type='application/json']").textContent);

// --- what takes long is drawn when it comes near the window, the rest when the browser has time ---
const jobs = new Map();  // element -> how it is drawn, once
const begin = (node) => {
  const job = jobs.get(node);
  jobs.delete(node);
  return job ? job() : undefined;
};
const near = new IntersectionObserver(
  (found) => found.filter((entry) => entry.isIntersecting).forEach((entry) => begin(entry.target)),
  {rootMargin: "200px"});
const later = (node, job) => { jobs.set(node, job); near.observe(node); };
const idle = window.requestIdleCallback ?? ((call) => setTimeout(call, 50));
const rest = async () => {
  const [node] = jobs.keys();
  if (!node) return;
  await begin(node);
  idle(rest);
};
window.addEventListener("load", () => idle(rest));
window.addEventListener("beforeprint", () => [...jobs.keys()].forEach(begin));

// --- curves: the methods' boxes and the measure's list set signals of Vega ----------------------
const signals = new Map(), views = new Map();  // by a chart's id
const set = (id, name, value) => {
  signals.get(id)[name] = value;
  return views.get(id)?.signal(name, value).runAsync();  // what is not drawn yet takes it up then
};
const label = (node, text) => {  // Vega puts words of its own there
  node.setAttribute("role", "img");
  node.setAttribute("aria-label", text);
  node.removeAttribute("aria-roledescription");
};
for (const node of document.querySelectorAll(".chart")) {
  signals.set(node.id, {});
  later(node, async () => {
    const list = document.querySelector(`select.measure[data-chart="${node.id}"]`);
    const text = node.getAttribute("aria-label");
    const spec = JSON.parse(document.getElementById(node.id + "-spec").textContent);
    const {view} = await window.vegaEmbed(node, spec, {actions: false, renderer: "svg"});
    views.set(node.id, view);
    for (const [name, value] of Object.entries(signals.get(node.id))) await set(node.id, name, value);
    label(node, list?.selectedOptions[0].dataset.alt ?? text);
    node.setAttribute("data-ready", "");
  });
}
for (const list of document.querySelectorAll("select.measure")) {
  const drawn = list.closest(".chart-block").querySelector(".drawn");
  const choose = () => {
    drawn.textContent = list.selectedOptions[0].textContent;
    label(document.getElementById(list.dataset.chart), list.selectedOptions[0].dataset.alt);
    return set(list.dataset.chart, "measure", list.value);
  };
  list.addEventListener("change", choose);
  if (list.selectedIndex) choose();  // a browser may remember a choice over a reload
}
for (const box of document.querySelectorAll("fieldset.methods")) {
  const group = box.closest(".group").dataset.group;
  const choose = () => {
    const shown = [...box.querySelectorAll("input:checked")].map((input) => input.value);
    for (const node of document.querySelectorAll(`.chart.switched[data-group="${group}"]`)) {
      set(node.id, "shown", shown);
    }
  };
  box.addEventListener("change", choose);
  if (box.querySelector("input:not(:checked)")) choose();
}

// --- the heat map of R: a table, so that its numbers can be read -------------------------------
const scaleAt = (colours, share) =>
  colours[Math.round(Math.min(Math.max(share, 0), 1) * (colours.length - 1))];
for (const block of document.querySelectorAll(".matrix")) {
  const data = dataOf(block);
  const [which, kind] = [block.querySelector(".which-run"), block.querySelector(".which-matrix")];
  const draw = () => {
    const run = data.runs[which.value], rows = run.matrices[kind.value];
    const table = make("table", {}, make("caption", {
      text: `${run.label}: ${data.names[kind.value]}, %; after task (down) on task (across)`}));
    if (!rows) table.append(make("tbody", {}, make("tr", {}, make("td", {text: "this run does not have it"}))));
    else {
      const body = make("tbody");
      table.append(make("thead", {}, make("tr", {}, make("th", {scope: "col", text: "after"}),
        ...rows.map((_, i) => make("th", {scope: "col", text: `task ${i + 1}`})))));
      rows.forEach((row, k) => body.append(make("tr", {}, make("th", {scope: "row", text: `task ${k + 1}`}),
        ...row.map((value) => {
          if (value === null) return make("td", {text: "?"});
          const [r, g, b] = scaleAt(data.colours, value / 100);
          const light = [r, g, b].map((c) => (c / 255) ** 2.2);  // relative luminance, roughly
          const dark = 0.2126 * light[0] + 0.7152 * light[1] + 0.0722 * light[2] < 0.18;
          return make("td", {text: value.toFixed(0),
            style: `background:rgb(${r},${g},${b});color:${dark ? "#fff" : "#000"}`});
        }))));
      table.append(body);
    }
    block.querySelector(".heat").replaceChildren(table);
  };
  which.addEventListener("change", draw);
  kind.addEventListener("change", draw);
  draw();
}

// --- maps over images ---------------------------------------------------------------------------
const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
// bilinear between cell centres, as the pointing game enlarges maps
const enlarge = (map, [u, v], size) => {
  const large = new Float32Array(size * size);
  const along = (cells) => Array.from({length: size}, (_, i) => {
    const at = Math.min(Math.max((i + 0.5) * cells / size - 0.5, 0), cells - 1);
    const low = Math.floor(at);
    return [low, Math.min(low + 1, cells - 1), at - low];
  });
  const [down, across] = [along(u), along(v)];
  for (let y = 0; y < size; y++) for (let x = 0; x < size; x++) {
    const [r0, r1, a] = down[y], [c0, c1, b] = across[x];
    const top = map[r0 * v + c0] * (1 - b) + map[r0 * v + c1] * b;
    const bottom = map[r1 * v + c0] * (1 - b) + map[r1 * v + c1] * b;
    large[y * size + x] = (top * (1 - a) + bottom * a) / 255;
  }
  return large;
};
const cross = (pen, peak, size, colour) => {
  if (!peak) return;
  const [y, x] = [peak[0] * size, peak[1] * size], arm = Math.max(5, size / 16);
  for (const [stroke, width] of [["#000", size / 32 + 2], [colour, size / 60 + 1]]) {
    pen.strokeStyle = stroke; pen.lineWidth = width; pen.beginPath();
    pen.moveTo(x - arm, y - arm); pen.lineTo(x + arm, y + arm);
    pen.moveTo(x + arm, y - arm); pen.lineTo(x - arm, y + arm); pen.stroke();
  }
};
const overlay = (canvas, image, look, colours) => {
  const size = canvas.width = canvas.height = +canvas.dataset.size;
  const pen = canvas.getContext("2d", {willReadFrequently: true});
  pen.imageSmoothingEnabled = image.naturalWidth > 48;
  pen.drawImage(image, 0, 0, size, size);
  const picture = pen.getImageData(0, 0, size, size), large = enlarge(look.map, look.shape, size);
  for (let i = 0; i < size * size; i++) {
    const grey = (picture.data[4 * i] + picture.data[4 * i + 1] + picture.data[4 * i + 2]) / 3;
    const colour = scaleAt(colours, large[i]);
    for (let c = 0; c < 3; c++) picture.data[4 * i + c] = 0.4 * grey + 0.6 * colour[c];
  }
  pen.putImageData(picture, 0, 0);
  cross(pen, look.peak, size, "#00e5ff");
};
const onMask = (canvas, mask, look) => {
  const size = canvas.width = canvas.height = +canvas.dataset.size;
  const pen = canvas.getContext("2d");
  pen.imageSmoothingEnabled = false;
  pen.drawImage(mask, 0, 0, size, size);
  cross(pen, look.peak, size, "#ff3030");
};
const place = (peak) => peak
  ? `peak ${Math.round(100 * peak[1])} % across, ${Math.round(100 * peak[0])} % down`
  : "no place speaks for it";
for (const block of document.querySelectorAll(".evolution")) {
  const data = dataOf(block);
  const [image, kind, slider] = ["image", "map", "task"].map((n) => block.querySelector(`.which-${n}`));
  const load = (source) => new Promise((done) => {
    const picture = new Image();
    picture.onload = () => done(picture);
    picture.src = source;
  });
  const look = (method, k) => {
    const found = data.looks[method][image.value]?.[k];
    if (!found) return null;
    const own = kind.value === "label" ? {map: found.label_map, peak: found.label_peak} : found;
    return {...found, map: bytes(own.map), peak: own.peak};
  };
  const says = (found, masked) => {
    const answer = `predicts ${found.answer}`;
    const game = masked && kind.value === "answer" ? (found.hit ? ", a hit" : ", a miss") : "";
    return `${found.correct ? "correct" : "incorrect"}, ${answer}; ${place(found.peak)}${game}`;
  };
  const methods = Object.keys(data.looks);
  let drawn = 0;
  const draw = async () => {
    const turn = ++drawn, picture = data.pictures[image.value];
    slider.min = picture.task;
    if (+slider.value < picture.task) slider.value = picture.task;
    const now = +slider.value;
    block.querySelector("output").textContent = `${now} of ${data.tasks}`;
    const [pixels, mask] = await Promise.all([load(picture.pixels), picture.mask && load(picture.mask)]);
    if (turn !== drawn) return;  // another choice was made meanwhile
    const spoken = [];
    const bare = make("div", {class: "card"}, make("h4", {text: "the image"}), make("p", {text: picture.name}),
      make("img", {src: picture.pixels, alt: picture.title, class: pixels.naturalWidth > 48 ? "" : "coarse"}));
    block.querySelector(".cards").replaceChildren(bare, ...methods.map((method) => {
      const found = look(method, now), card = make("div", {class: "card method"},
        make("h4", {text: `${method}, after task ${now}`}));
      if (!found) { card.append(make("p", {text: "no map"})); return card; }
      const said = says(found, mask);
      spoken.push(`${method}: ${said}.`);
      const canvas = make("canvas", {"data-size": 160, role: "img", "aria-label":
        `${picture.title}, map of ${method} after task ${now}: ${said}`});
      overlay(canvas, pixels, {...found, shape: data.shape[method]}, data.colours);
      const shown = make("div", {class: "views"}, canvas);
      if (mask) {
        const second = make("canvas", {"data-size": 160, role: "img", "aria-label":
          `mask of the object with the peak of ${method}${kind.value === "answer" ? (found.hit ? ": a hit" : ": a miss") : ""}`});
        onMask(second, mask, found);
        shown.append(second);
      }
      card.append(make("p", {class: found.correct ? "right" : "wrong", text: found.correct ? "correct" : "incorrect"}),
        shown, make("p", {text: said.replace(/^(in)?correct, /, "")}));
      return card;
    }));
    block.querySelector(".said-of").textContent = `After task ${now}. ${spoken.join(" ")}`;
    const tasks = Array.from({length: data.tasks - picture.task + 1}, (_, i) => i + picture.task);
    const head = make("tr", {}, make("td"), ...tasks.map((k) => {
      const button = make("button", {type: "button", text: k, "aria-label": `show task ${k}`});
      button.addEventListener("click", () => { slider.value = k; draw(); });
      return make("th", {scope: "col"}, button);
    }));
    const rows = methods.map((method) => make("tr", {}, make("th", {scope: "row"}, ...breakable(method)),
      ...tasks.map((k) => {
        const found = look(method, k), cell = make("td", {class: k === now ? "now" : ""});
        if (!found) return cell;
        const canvas = make("canvas", {"data-size": 72, role: "img", "aria-label":
          `${method} after task ${k}: ${says(found, mask)}`});
        overlay(canvas, pixels, {...found, shape: data.shape[method]}, data.colours);
        cell.append(make("span", {class: found.correct ? "right" : "wrong",
          text: found.correct ? "correct" : "incorrect"}), canvas);
        return cell;
      })));
    const strip = block.querySelector(".strip");
    strip.style.setProperty("--tasks", tasks.length);  // how large pictures are on paper
    const held = strip.contains(document.activeElement) && document.activeElement.getAttribute("aria-label");
    strip.replaceChildren(make("table", {},
      make("caption", {text: `${picture.title}: all tasks since its own`}),
      make("thead", {}, head), make("tbody", {}, ...rows)));
    if (held) strip.querySelector(`button[aria-label="${held}"]`)?.focus({preventScroll: true});
    block.setAttribute("data-drawn", `${image.value}/${kind.value}/${now}`);
  };
  for (const control of [image, kind]) control.addEventListener("change", draw);
  slider.addEventListener("input", draw);
  image.value = data.example;
  later(block, draw);
}

// --- a link to a run opens its config -----------------------------------------------------------
const open = () => {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target) return;
  const details = target.tagName === "DETAILS" ? target : target.querySelector("details");
  if (details) { details.open = true; details.querySelector("summary").focus({preventScroll: true}); }
};
window.addEventListener("hashchange", open);
open();
