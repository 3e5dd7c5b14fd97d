"use strict";
// Requests the game's state, often while the agent thinks, and shows it; sends the person's actions.

const FAST = 120, SLOW = 1000; // milliseconds between two requests
const CHOICES = [0, 25, 100, 400, 800, 1600, 6400, 25600];
const at = (id) => document.getElementById(id);
let state = null, board = null, tag = "", timer = 0, asked = 0;

// ------------------------------------------------------------------------------------------------ what to show

// The search to show: of this position, or of the previous one if the person wants no hints.
function chosenSearch() {
  const mine = state.mover === state.person && !state.over;
  return state.now && (!mine || at("hints").checked) ? [state.now, true] : [state.before, false];
}

const shares = (search) => search.visits.map((n) => (search.done ? n / Math.max(1, search.visits.reduce((a, b) => a + b, 0)) : 0));

const mostOf = (actions, number) => actions.reduce((best, a) => (number(a) > number(best) ? a : best), actions[0]);
// The move that the search would play, which is the better of moves with equal visits.
const chosenMove = (search) => (search.variation.length ? search.variation[0] : mostOf(search.legal, (a) => search.priors[a]));

function heatOf(search) {
  const found = new Map(), kind = search.asked || at("heat").value === "none" ? at("heat").value : "policy";
  if (kind === "none") return found;
  const parts = shares(search), numbers = { visits: parts, policy: search.priors, value: search.q }[kind];
  const top = kind === "visits" ? chosenMove(search) : mostOf(search.legal, (a) => (kind === "value" && !search.visits[a] ? -2 : numbers[a]));
  for (const action of search.legal) {
    const value = numbers[action];
    if (kind === "value" && !search.visits[action]) continue;
    const shown = kind === "value" ? expected(value) : value;
    const share = kind === "value" ? Math.abs(value) : value;
    const words = kind === "value" ? `value ${percent(shown)}` : `${kind === "policy" ? "policy" : "visits"} ${percent(shown)}`;
    const figure = Math.round(100 * shown), text = figure || kind === "value" ? String(figure) : "";
    found.set(action, { share, text, bad: kind === "value" && value < 0, best: action === top, words });
  }
  return found;
}

// The solver's verdict on a move of the player to move; its number counts the winner's moves.
function verdictOf(action) {
  const found = state.solver.verdicts[action];
  if (!found || !at("verdicts").checked || state.over) return null;
  const [outcome, plies] = found, kind = ["loss", "draw", "win"][outcome + 1];
  if (!outcome) return { kind, short: "draw", words: "draws" };
  const n = outcome > 0 ? Math.ceil(plies / 2) : Math.floor(plies / 2);
  return { kind, short: `${kind} ${n}`, words: `${kind === "win" ? "wins" : "loses"} in ${n}` };
}

const nameOf = (side) => (side === state.person ? "You" : "The agent");

function turnText() {
  if (state.trouble) return "The agent cannot continue";
  if (state.over && state.winner === null) return "A draw";
  if (state.over) return `${nameOf(state.winner)} ${state.winner === state.person ? "win" : "wins"}${state.margin ? ` by ${state.margin}` : ""}`;
  return state.mover === state.person ? "Your turn" : "The agent is thinking …";
}

// ------------------------------------------------------------------------------------------------ show it

function show() {
  if (!board) begin();
  const [search, here] = chosenSearch();
  document.body.classList.toggle("yours", state.mover === state.person && !state.over);
  const side = state.over ? state.winner : state.mover, dot = side === null ? [] : [element("span", "", `dot ${STONES[side]}`)];
  if (at("turn").textContent !== turnText() || at("turn").dataset.side !== String(side)) at("turn").replaceChildren(...dot, turnText());
  at("turn").dataset.side = side;
  board.show(state, search && here && !state.over ? heatOf(search) : new Map(), verdictOf);
  showValue(search);
  showSearch(search, here);
  drawCurve(at("curve"), state);
  showSolver();
  if (state.counted) setText(at("discs"), STONES.map((_, i) => `${SIDES[i]} ${state.cells.filter((stone) => stone === i + 1).length}`).join(", "));
  at("undo").disabled = !state.undo;
  showOthers();
  for (const radio of document.getElementsByName("person")) radio.checked = Number(radio.value) === state.person;
  if (!at("simulations").matches(":focus")) setChoices(state.simulations);
  if (state.trouble) setText(at("answer"), state.trouble);
}

function begin() {
  setText(at("title"), state.board.title);
  setText(at("about"), `against ${state.about.run}, ${state.about.system} after ${number(state.about.updates)} updates`);
  document.title = `Polyplay: ${state.board.title}`;
  board = new Board(at("board"), at("letters"), state, play);
  const where = state.gravity ? "arrow keys or a column’s number choose a column" : "arrow keys choose a cell";
  setText(at("keys"), `Keys on the board: ${where}, Enter plays; ${state.others.length ? `p: ${state.names[state.others[0]]}, ` : ""}u takes a move back, n starts a new game. ${state.board.goal}`);
  at("others").replaceChildren(...state.others.map((action) => {
    const made = element("button", state.names[action]);
    made.type = "button";
    made.addEventListener("click", () => play(action));
    return made;
  }));
  at("discs").parentElement.hidden = !state.counted;
  if (state.solver.why_not) at("verdicts").parentElement.hidden = at("solver").hidden = at("perfect").hidden = true;
}

// Moves that are not cells, such as a pass: a button each, while legal.
function showOthers() {
  [...at("others").children].forEach((button, i) => {
    button.hidden = !state.legal.includes(state.others[i]);
    button.disabled = state.mover !== state.person;
  });
}

// Both players' expected scores from the search; after the game, its result.
function showValue(search) {
  const value = state.over ? state.values.at(-1) : search ? search.value : null;
  const first = value === null ? null : expected(value);
  at("share").style.width = percent(first === null ? 0.5 : first).replace(" ", "");
  ["first", "second"].forEach((id, i) => {
    const part = first === null ? "–" : percent(i ? 1 - first : first), whose = i === state.person ? "you" : "agent";
    const bold = element("b", part), key = `${whose} ${part}`;
    if (at(id).dataset.key !== key) at(id).replaceChildren(element("span", "", `dot ${id}`), ` ${whose} `, bold);
    at(id).dataset.key = key;
  });
  const said = first === null ? "no value yet" : `expected score: ${SIDES[0]} ${percent(first)}, ${SIDES[1]} ${percent(1 - first)}`;
  at("value").setAttribute("aria-label", said);
  at("value").title = said;
}

function showSearch(search, here) {
  const last = state.moves.length ? state.names[state.moves.at(-1)] : "";
  const mine = search && search.mover === state.person, who = mine ? "your" : "the agent’s";
  const whose = !search ? "Search" : here ? `Search for ${who} move` : `Search before ${who} move ${last}`;
  setText(at("whose"), whose);
  at("progress").value = search ? (search.asked ? Math.min(1, search.done / search.asked) : 1) : 0;
  setText(at("done"), !search ? "" : search.asked ? `${number(search.done)} / ${number(search.asked)} simulations` : "the bare network");
  const key = JSON.stringify([search, here, state.solver.verdicts, at("verdicts").checked, last]);
  if (at("moves").dataset.key === key) return;
  at("moves").dataset.key = key;
  at("moves").replaceChildren(...(search ? inOrder(search).map((action) => moveRow(search, here, action)) : []));
  const stones = (search ? search.variation : []).map((action, i) => {
    const item = element("li");
    item.append(element("span", "", `dot ${STONES[(search.mover + i) % 2]}`), state.names[action]);
    return item;
  });
  at("variation").replaceChildren(...(stones.length ? stones : [element("span", search ? "no simulations, no variation" : "–", "small")]));
}

// Columns from left to right; cells, which are many, from the best move down.
function inOrder(search) {
  const first = chosenMove(search), rank = (a) => (a === first ? Infinity : search.visits[a] + search.priors[a] / 2);
  return state.gravity ? search.legal : [...search.legal].sort((a, b) => (rank(a) < rank(b) ? 1 : rank(a) > rank(b) ? -1 : a - b));
}

function moveRow(search, here, action) {
  const row = element("tr"), part = shares(search)[action];
  if (action === chosenMove(search)) row.className = "top";
  if (!here && action === state.moves.at(-1)) row.classList.add("played");
  const amount = element("span", "", "amount"), rail = element("span"), bar = element("i");
  bar.style.width = `${Math.round(100 * part)}%`;
  rail.append(bar);
  amount.append(element("span", number(search.visits[action])), rail);
  const visits = element("td");
  visits.append(amount);
  const value = search.visits[action] ? percent(expected(search.q[action])) : "–";
  row.append(element("td", state.names[action]), element("td", percent(search.priors[action])), visits, element("td", value));
  const verdict = here ? verdictOf(action) : null;
  if (!state.solver.why_not) row.append(element("td", verdict ? verdict.short : "–", verdict ? verdict.kind : ""));
  return row;
}

function showSolver() {
  const { why_not } = state.solver;
  setText(at("solved"), why_not ? `No verdicts: ${why_not}.` : state.over ? "The game is over." : "Every move is solved.");
}

function setChoices(now) {
  const values = [...new Set([...CHOICES, now])].sort((a, b) => a - b);
  const list = at("simulations");
  if (list.dataset.key !== values.join()) list.replaceChildren(...values.map((n) => new Option(n ? number(n) : "0: bare network", n)));
  list.dataset.key = values.join();
  list.value = String(now);
}

// ------------------------------------------------------------------------------------------------ what happens

// Announced to screen readers: what the agent did, and how the game ended.
function tell(before) {
  if (!before || before.moves.length === state.moves.length) return;
  const n = state.moves.length, by = (state.mover + 1) % 2;
  const did = n > before.moves.length ? `${nameOf(by)} played ${state.names[state.moves.at(-1)]}. ` : "Taken back. ";
  setText(at("news"), did + turnText());
}

function take(found) {
  const before = state;
  state = found;
  show();
  tell(before);
}

async function send(what, given = {}) {
  const mine = ++asked;
  setText(at("answer"), "");
  try {
    const headers = { "Content-Type": "application/json", "X-Polyplay": "play" };
    const reply = await fetch(`game/${what}`, { method: "POST", headers, body: JSON.stringify(given) });
    const found = await reply.json();
    if (reply.ok && mine === asked) take(found);
    else if (!reply.ok) { setText(at("answer"), found.answer); setText(at("news"), found.answer); }
  } catch {
    setText(at("link"), "the page’s server does not answer");
  }
  tag = "";
  refresh();
}

function play(action) {
  if (state && !state.over && state.mover === state.person && state.legal.includes(action)) send("move", { action, ply: state.moves.length });
}

async function refresh() {
  clearTimeout(timer);
  const mine = asked;
  let wait = SLOW;
  try {
    const reply = await fetch("state", { headers: tag ? { "If-None-Match": tag } : {}, cache: "no-store" });
    if (reply.status === 200 && mine === asked) {
      tag = reply.headers.get("etag") || "";
      take(await reply.json());
    }
    setText(at("link"), reply.ok || reply.status === 304 ? "" : `the server answers ${reply.status}`);
    if (state && state.thinking) wait = FAST;
  } catch {
    setText(at("link"), "the page’s server does not answer; this is the last position");
  }
  clearTimeout(timer);
  timer = setTimeout(refresh, wait);
}

at("undo").addEventListener("click", () => send("undo"));
at("new").addEventListener("click", () => send("new", { person: state.person }));
at("simulations").addEventListener("change", (event) => send("simulations", { simulations: Number(event.target.value) }));
for (const radio of document.getElementsByName("person")) radio.addEventListener("change", () => send("sides", { person: Number(radio.value) }));
for (const id of ["heat", "hints", "verdicts"]) at(id).addEventListener("change", () => { if (state) show(); });
at("board").addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  if (event.key === "u") at("undo").click();
  if (event.key === "p") play(state.others[0]);
  if (event.key === "n") at("new").click();
});
addEventListener("resize", () => { if (state) show(); });
refresh();
