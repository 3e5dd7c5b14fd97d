"use strict";
// The board and the curve: made once, then only changed, so that the focus stays where it is.

const SIDES = ["Blue", "Orange"], STONES = ["first", "second"];
const percent = (share) => `${Math.round(100 * share)} %`;
const expected = (value) => (1 + value) / 2; // the score, of which a draw is half

// A button per move: with gravity a column of cells, otherwise a cell. Other moves have buttons outside the board.
class Board {
  constructor(host, letters, state, play) {
    const { rows, columns } = state.board, halves = state.slanted ? rows - 1 : 0; // half cells by which the last row lies further right
    Object.assign(this, { host, gravity: state.gravity, rows, columns, cells: [], buttons: [], here: Math.floor(columns / 2), shown: null });
    host.style.gridTemplateColumns = letters.style.gridTemplateColumns = `repeat(${2 * columns + halves}, minmax(0, 1fr))`;
    host.style.maxWidth = letters.style.maxWidth = `${4 * (2 * columns + halves)}rem`;
    letters.classList.toggle("free", !state.gravity);
    const count = state.gravity ? columns : rows * columns;
    for (let action = 0; action < count; action++) this.buttons.push(this.makeButton(action, play));
    for (let cell = 0; cell < rows * columns; cell++) {
      const made = element("span", "", "cell");
      made.append(element("span", "", "hole"));
      if (state.slanted) made.classList.add(...edgesOf(cell, rows, columns));
      this.cells.push(made);
      this.buttons[this.gravity ? cell % columns : cell].append(made);
    }
    this.letters = Array.from({ length: columns }, (_, i) => {
      const made = element("span", state.names[state.gravity ? i : (rows - 1) * columns + i].replace(/\d+/, ""));
      made.append(element("b"));
      return made;
    });
    const place = (node, i, row) => { node.style.gridColumn = `${1 + 2 * (i % columns) + (state.slanted ? row : 0)} / span 2`; };
    this.buttons.forEach((button, i) => place(button, i, Math.floor(i / columns)));
    this.letters.forEach((made, i) => place(made, i, rows - 1));
    letters.replaceChildren(...this.letters);
    host.replaceChildren(...this.buttons);
    host.addEventListener("keydown", (event) => this.onKey(event));
    this.focusOn(this.here, false);
  }

  makeButton(action, play) {
    const made = element("button");
    made.type = "button";
    made.dataset.action = action;
    made.addEventListener("click", () => play(action));
    made.addEventListener("focus", () => this.focusOn(action, false));
    return made;
  }

  // The board is one stop of the Tab key; the arrow keys move within it.
  focusOn(action, really = true) {
    this.here = action;
    this.buttons.forEach((button, i) => { button.tabIndex = i === action ? 0 : -1; });
    if (really) this.buttons[action].focus();
  }

  onKey(event) {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const n = this.buttons.length, row = Math.floor(this.here / this.columns) * this.columns;
    const steps = { ArrowLeft: -1, ArrowRight: 1, ...(this.gravity ? {} : { ArrowUp: -this.columns, ArrowDown: this.columns }) };
    let to = null;
    if (event.key in steps) to = this.here + steps[event.key];
    else if (event.key === "Home") to = row;
    else if (event.key === "End") to = row + this.columns - 1;
    else if (this.gravity && event.key >= "1" && event.key <= "9") to = Number(event.key) - 1;
    if (to === null) return;
    event.preventDefault();
    if (to >= 0 && to < n) this.focusOn(to);
  }

  // The cell that a move fills, -1 if there is none.
  target(cells, action) {
    if (!this.gravity) return cells[action] ? -1 : action;
    for (let row = this.rows - 1; row >= 0; row--)
      if (!cells[row * this.columns + action]) return row * this.columns + action;
    return -1;
  }

  show(state, heat, verdict) {
    state.cells.forEach((stone, i) => this.showStone(i, stone, this.shown && !this.shown[i]));
    if (state.moves.length) this.mark(state);
    else for (const cell of this.cells) cell.classList.remove("last", "won");
    this.cells.forEach((cell, i) => this.clear(cell, this.gravity ? "" : state.names[i]));
    for (const [action, one] of heat) if (action < this.buttons.length) this.showHeat(this.target(state.cells, action), one);
    this.cells.forEach((cell, i) => { cell.dataset.owner = state.owners.length ? ["", ...STONES][state.owners[i]] : ""; });
    this.buttons.forEach((button, action) => {
      button.setAttribute("aria-disabled", String(!state.legal.includes(action) || state.mover !== state.person));
      button.setAttribute("aria-label", this.label(state, action, heat.get(action), verdict(action)));
    });
    if (this.gravity) this.letters.forEach((made, i) => showVerdict(made.lastChild, verdict(i)));
    this.shown = state.cells;
  }

  clear(cell, name) {
    cell.classList.remove("heated", "best");
    cell.classList.add("named");
    if (!cell.querySelector(".stone")) setText(cell.firstChild, name);
  }

  showStone(i, stone, fresh) {
    const hole = this.cells[i].firstChild, there = hole.querySelector(".stone");
    if (!stone) return there && there.remove();
    if (there && there.classList.contains(STONES[stone - 1])) return;
    const made = element("span", "", `stone ${STONES[stone - 1]}${fresh ? " fresh" : ""}`);
    if (this.gravity) made.style.setProperty("--drop", Math.floor(i / this.columns) + 1);
    hole.replaceChildren(made);
  }

  mark(state) {
    const action = state.moves.at(-1), top = this.gravity ? state.cells.findIndex((stone, i) => stone && i % this.columns === action) : action;
    this.cells.forEach((cell, i) => {
      cell.classList.toggle("last", i === top && !state.line.includes(i));
      cell.classList.toggle("won", state.line.includes(i));
    });
  }

  showHeat(cell, { share, text, bad, best }) {
    if (cell < 0) return;
    const node = this.cells[cell];
    node.classList.add("heated");
    if (text) node.classList.remove("named");
    node.classList.toggle("best", Boolean(best));
    node.style.setProperty("--share", share.toFixed(3));
    node.style.setProperty("--heat", bad ? "var(--bad)" : "var(--good)");
    if (text) setText(node.firstChild, text);
  }

  label(state, action, heat, verdict) {
    const name = state.names[action], who = (stone) => (stone - 1 === state.person ? "you" : "agent");
    const hints = [heat && heat.words, verdict && `solver: ${verdict.words}`].filter(Boolean);
    const own = this.gravity ? state.cells.filter((_, i) => i % this.columns === action).reverse() : [state.cells[action]];
    const stones = own.filter(Boolean).map(who);
    if (!this.gravity) return [`${name}: ${stones[0] || "empty"}`, ...hints].join("; ");
    const text = stones.length ? `from the bottom ${stones.join(", ")}` : "empty";
    return [`column ${name}: ${text}${stones.length === this.rows ? ", full" : ""}`, ...hints].join("; ");
  }
}

// The board's sides that a cell touches, in games that connect sides.
function edgesOf(cell, rows, columns) {
  const row = Math.floor(cell / columns), column = cell % columns;
  const at = { top: row === 0, bottom: row === rows - 1, left: column === 0, right: column === columns - 1 };
  return Object.keys(at).filter((side) => at[side]);
}

function showVerdict(node, verdict) {
  setText(node, verdict ? verdict.short : "");
  node.className = verdict ? verdict.kind : "";
}

// The expected score of the first player after each move; a gap where nothing was searched.
function drawCurve(host, state) {
  const width = Math.max(280, Math.min(host.clientWidth, 640)), height = 150, left = 54, right = 12;
  const values = state.values, most = Math.max(8, values.length - 1);
  const key = JSON.stringify([width, values]);
  if (host.dataset.key === key) return;
  host.dataset.key = key;
  const x = (ply) => left + (width - left - right) * ply / most, y = (value) => 12 + (height - 40) * (1 - expected(value));
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img" });
  const known = values.flatMap((value, ply) => (value === null ? [] : [[ply, value]]));
  const ends = known.length ? `, now ${percent(expected(known.at(-1)[1]))}` : "";
  picture.append(svg("title", {}, `Expected score of ${SIDES[0]} after each of ${values.length - 1} moves${ends}`));
  for (const [value, text] of [[1, SIDES[0]], [0, "even"], [-1, SIDES[1]]]) {
    picture.append(svg("path", { class: value ? "grid" : "even", d: `M${left} ${y(value)}H${width - right}` }));
    picture.append(svg("text", { class: "dim", x: 0, y: y(value) + 4 }, text));
  }
  const step = Math.ceil(most / 8);
  for (let ply = 0; ply <= most; ply += step)
    picture.append(svg("text", { class: "dim", x: x(ply), y: height - 6, "text-anchor": "middle" }, ply));
  const path = known.map(([ply, value], i) => `${i && known[i - 1][0] === ply - 1 ? "L" : "M"}${x(ply).toFixed(1)} ${y(value).toFixed(1)}`).join("");
  if (path) picture.append(svg("path", { class: "line", d: path }));
  for (const [ply, value] of known) {
    const point = svg("circle", { class: `point ${STONES[value >= 0 ? 0 : 1]}`, cx: x(ply), cy: y(value), r: ply === values.length - 1 ? 5 : 3 });
    point.append(svg("title", {}, `after ${ply} moves: ${SIDES[0]} ${percent(expected(value))}`));
    picture.append(point);
  }
  host.replaceChildren(picture);
}
