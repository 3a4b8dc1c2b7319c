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
