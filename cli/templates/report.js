"use strict";
// A click on a heading sorts by its column, a second click the other way; the field keeps the rows that hold its words.
for (const table of document.querySelectorAll("table.edges")) {
  const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells], rows = [...body.rows];
  const value = (row, i) => {
    const cell = row.cells[i], text = cell.dataset.v ?? cell.textContent.trim(), number = parseFloat(text);
    return Number.isNaN(number) ? text : number;
  };
  heads.forEach((head, i) => {
    head.tabIndex = 0;
    head.onclick = () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const order = (a, b) => (typeof a === typeof b ? (a < b ? -1 : a > b ? 1 : 0) : typeof a === "number" ? -1 : 1);
      rows.sort((a, b) => order(value(a, i), value(b, i)) * (down ? -1 : 1));
      body.append(...rows);
    };
    head.onkeydown = (event) => { if (event.key === "Enter") head.click(); };
  });
  const box = table.closest("section"), filter = box.querySelector(".filter"), count = box.querySelector(".count");
  for (const row of rows) [...row.cells].slice(1, -1).forEach((cell, i) => { cell.dataset.label = heads[i + 1].textContent; });
  filter.oninput = () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
      shown += !row.hidden;
    }
    count.textContent = words.length ? `${shown} of ${rows.length}` : "";
  };
}

// A dot of the chart leads to its row, which the field may have hidden.
document.addEventListener("click", (event) => {
  const link = event.target.closest(".chart a");
  if (link) document.getElementById(link.getAttribute("href").slice(1)).hidden = false;
});
// A row shows its box in the graph, which is opened; a box marks its row.
document.addEventListener("click", (event) => {
  const row = event.target.closest("tr[data-node]"), details = row?.closest("section").querySelector("details.network");
  if (!details) return;
  details.dataset.wanted = row.dataset.node;
  if (details.querySelector("iframe")) ask(details);
  details.open = true;
  pick(details, row.dataset.node, false);
});
function ask(details) {
  const wanted = details.dataset.wanted, frame = details.querySelector("iframe");
  if (wanted && frame) frame.contentWindow.postMessage({ show: wanted }, "*");
}
function pick(details, name, follow) {
  for (const row of details.closest("section").querySelectorAll("tr[data-node]")) {
    const here = row.dataset.node === name;
    row.classList.toggle("picked", here);
    if (here && follow) { row.hidden = false; row.closest(".scroll").scrollTop = row.offsetTop - 60; }
  }
}
window.addEventListener("message", (event) => {
  for (const details of document.querySelectorAll("details.network")) {
    if (details.querySelector("iframe")?.contentWindow !== event.source) continue;
    if (event.data?.ready) ask(details);
    if (typeof event.data?.chosen === "string") pick(details, event.data.chosen, true);
  }
});
// The graph is a page of its own in a frame, made when it is opened; its texts and data stand here once.
for (const details of document.querySelectorAll("details.network")) {
  details.addEventListener("toggle", () => {
    const place = details.querySelector(".graph"), data = details.querySelector("script").textContent;
    if (!details.open || place.firstChild) return;
    const frame = document.createElement("iframe");
    frame.title = details.querySelector("summary").textContent;
    frame.setAttribute("sandbox", "allow-scripts");
    frame.srcdoc = JSON.parse(document.getElementById("viewer").textContent).replace("@DATA@", () => data);
    place.append(frame);
  });
}
// Paper has nothing to open: what was found is printed in full.
const opened = [];
addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details.more:not([open])")) {
    details.open = true;
    opened.push(details);
  }
});
addEventListener("afterprint", () => {
  for (const details of opened.splice(0)) details.open = false;
});
