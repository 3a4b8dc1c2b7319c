"use strict";
// The overview: the whole drawing, stretched where it would be a hairline, with a frame around what the stage shows.
const map = document.getElementById("map"), NARROWEST = 40, WIDEST = 150, SEEN = 2, TITLE = 60; // pixels
let shownPart = null;

function survey() {
  const room = Math.max(80, stage.clientHeight * 0.7), scale = Math.min(WIDEST / size[0], room / size[1]);
  map.setAttribute("viewBox", `0 0 ${size[0]} ${size[1]}`);
  map.setAttribute("preserveAspectRatio", "none");
  map.style.width = Math.max(NARROWEST, size[0] * scale) + "px";
  map.style.height = Math.max(NARROWEST, size[1] * scale) + "px";
  map.replaceChildren();
  for (const [key, { node, x, y, w, h }] of drawn) {
    const inner = opened.has(key) && node.graph !== null, high = Math.max(h, SEEN / scale);
    svg("rect", { x, y, width: w, height: high, style: `fill: ${inner ? "var(--move)" : dense(node)}` }, map);
  }
  shownPart = svg("rect", { class: "frame" }, map);
}

// Pale boxes would not be seen so small.
const dense = (node) => `color-mix(in srgb, ${fill(node)} 65%, var(--ink))`;

function frame() {
  const { clientWidth: w, clientHeight: h } = stage, { x, y, k } = view;
  const left = Math.max(0, -x / k), top = Math.max(0, -y / k);
  const right = Math.min(size[0], (w - x) / k), bottom = Math.min(size[1], (h - y) / k);
  const at = { x: left, y: top, width: Math.max(0, right - left), height: Math.max(0, bottom - top) };
  for (const [name, value] of Object.entries(at)) shownPart.setAttribute(name, value);
  map.toggleAttribute("hidden", at.width >= size[0] - 1 && at.height >= size[1] - 1);
}

function goThere(event) {
  const at = map.getBoundingClientRect();
  look((event.clientX - at.left) / at.width * size[0], (event.clientY - at.top) / at.height * size[1]);
}
map.addEventListener("pointerdown", (event) => { map.setPointerCapture(event.pointerId); goThere(event); });
map.addEventListener("pointermove", (event) => { if (map.hasPointerCapture(event.pointerId)) goThere(event); });
// A frame of a report gets its size late.
new ResizeObserver(() => {
  survey();
  if (["x", "y", "k"].every((part) => view[part] === began[part])) start(); // nobody has moved it yet
  else frame();
}).observe(document.getElementById("stage"));

// On paper the drawing is as wide as the page at most, and goes on over as many pages as it needs.
window.addEventListener("beforeprint", () => {
  const picture = layer.parentNode;
  layer.removeAttribute("transform");
  picture.setAttribute("viewBox", `0 ${-TITLE} ${size[0]} ${size[1] + TITLE}`);
  picture.style.maxWidth = size[0] * 0.75 + "px";
});
window.addEventListener("afterprint", () => {
  layer.parentNode.removeAttribute("viewBox");
  layer.parentNode.style.maxWidth = "";
  place();
});
