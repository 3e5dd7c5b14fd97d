"use strict";
// Every two seconds: fetch what is new, and write it into the page. Data is only ever text, never markup.

const EVERY = 2000;
const KINDS = { env: "environment", infer: "acting", learn: "learning", replay: "replay", wait: "waiting" };
const token = new URLSearchParams(location.hash.slice(1)).get("token") || "";
const views = [];
let tag = "";

const short = (value) => {
  for (const [size, unit] of [[1e9, "B"], [1e6, "M"], [1e3, "k"]])
    if (Math.abs(value) >= size) return `${+(value / size).toPrecision(3)}${unit}`;
  return `${+value.toPrecision(3)}`;
};

const clock = (seconds) => {
  if (typeof seconds !== "number") return "–";
  const whole = Math.floor(seconds);
  const two = (n) => String(n).padStart(2, "0");
  return `${Math.floor(whole / 3600)}:${two(Math.floor(whole / 60) % 60)}:${two(whole % 60)}`;
};

// ------------------------------------------------------------------------------------------------ the wiring

const GAP = 64, HEIGHT = 58, SIDE = 26;

// Boxes under each other, in the order of the wiring. An arrow down is left of the middle, one up is right of it;
// where a box lies between, or both ends are one, the arrow goes around at the right edge.
function drawWiring(view, run) {
  const wiring = run.wiring, host = view.at.wiring, width = Math.max(280, Math.min(host.clientWidth, 620));
  const key = JSON.stringify([wiring, width]);
  if (view.wiringKey === key) return;
  view.wiringKey = key;
  view.figures = [];
  host.replaceChildren();
  if (!wiring.roles) {
    host.append(element("p", "This run has no wiring.json: it was made by an earlier version.", "small"));
    return;
  }
  const rows = new Map(wiring.roles.map((role, i) => [role.name, i]));
  const arrows = wiring.arrows.flatMap((arrow) =>
    arrow.from.flatMap((from) => arrow.to.map((to) => ({ ...arrow, from: rows.get(from), to: rows.get(to) }))));
  const around = arrows.filter((a) => Math.abs(a.from - a.to) !== 1);
  const right = width - 4 - SIDE * around.length;
  const height = wiring.roles.length * (HEIGHT + GAP) - GAP + 8;
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img" });
  picture.append(svg("title", {}, describeWiring(wiring)));
  wiring.roles.forEach((role, i) => drawRole(view, picture, role, 4 + i * (HEIGHT + GAP), right));
  for (const arrow of arrows) drawArrow(view, picture, arrow, around, right);
  host.append(picture);
  const words = element("details");
  words.append(element("summary", "the wiring in words"));
  for (const role of wiring.roles) words.append(element("p", `${role.name} × ${role.n}: ${role.holds.join("; ")}`, "small"));
  for (const a of wiring.arrows) words.append(element("p", `${a.from.join(" + ")} → ${a.label} → ${a.to.join(" + ")}`, "small"));
  host.append(words);
}

const describeWiring = (wiring) => "Wiring: " + wiring.roles.map((r) => `${r.name} × ${r.n}`).join(", ") + ". " +
  wiring.arrows.map((a) => `${a.from.join(" + ")} to ${a.to.join(" + ")}: ${a.label}`).join(". ");

function drawRole(view, picture, role, y, right) {
  picture.append(svg("rect", { class: "box", x: 2, y, width: right - 2, height: HEIGHT, rx: 6 }));
  picture.append(svg("text", { class: "name", x: 14, y: y + 22 }, `${role.name} × ${role.n}`));
  const doing = [role.acts && "acts", role.learns && "learns"].filter(Boolean).join(" and ") || "serves";
  picture.append(svg("text", { class: "dim", x: right - 10, y: y + 22, "text-anchor": "end" }, doing));
  const rates = [];
  if (role.acts) rates.push((now) => `${number(now.sps)} steps/s`);
  if (role.learns) rates.push((now) => `${number(now.tps, now.tps < 10 ? 1 : 0)} updates/s`);
  if (!rates.length) return;
  const figure = svg("text", { class: "figure", x: 14, y: y + 44 });
  picture.append(figure);
  view.figures.push([figure, (now) => rates.map((rate) => rate(now)).join(" · ")]);
}

function drawArrow(view, picture, arrow, around, right) {
  const top = (i) => 4 + i * (HEIGHT + GAP), down = arrow.to > arrow.from, i = around.indexOf(arrow);
  let path, tip, x, y;
  if (i < 0) {
    x = down ? 24 : right / 2 + 24;
    const [from, to] = down ? [top(arrow.from) + HEIGHT, top(arrow.to) - 7] : [top(arrow.from), top(arrow.to) + HEIGHT + 7];
    path = `M${x} ${from}V${to}`;
    tip = down ? `M${x - 5} ${to}h10l-5 7z` : `M${x - 5} ${to}h10l-5 -7z`;
    y = (from + to) / 2;
  } else {
    const lane = right + SIDE * (i + 0.6), shift = arrow.from === arrow.to ? 16 : 0;
    const from = top(arrow.from) + HEIGHT / 2 - shift + 4 * i, to = top(arrow.to) + HEIGHT / 2 + shift + 4 * i;
    path = `M${right} ${from}H${lane}V${to}H${right + 7}`;
    tip = `M${right + 7} ${to - 5}v10l-7 -5z`;
  }
  const line = svg("path", { class: "arrow", d: path });
  line.append(svg("title", {}, arrow.label));
  picture.append(line, svg("path", { class: "tip", d: tip }));
  view.figures.push([line, null]);
  if (i >= 0) return;
  const room = Math.floor((right / 2 - 40) / 6.2), name = arrow.label.split(":")[0];
  picture.append(svg("text", { class: "dim", x: x + 12, y: y - 4 }, name.length > room ? `${name.slice(0, room - 1)}…` : name));
  const figure = svg("text", { class: "figure", x: x + 12, y: y + 13 });
  picture.append(figure);
  view.figures.push([figure, (now) => arrow.weights ? `lag ${number(now.lag_mean, 2)}` : `depth ${number(now.queue_depth, 1)}`]);
}

// ------------------------------------------------------------------------------------------------ the curves

function drawCurve(view, name, points, title, label) {
  const host = view.at[name], width = Math.max(280, Math.min(host.clientWidth, 620)), height = 168;
  const shown = points.filter((p) => typeof p[1] === "number");
  const key = JSON.stringify([width, shown.length, shown.at(-1)]);
  if (view[name + "Key"] === key) return;
  view[name + "Key"] = key;
  if (!shown.length) return host.replaceChildren(element("p", "Nothing has been measured yet.", "small"));
  const ys = shown.map((p) => p[1]), most = shown.at(-1)[0] || 1;
  let low = Math.min(...ys), high = Math.max(...ys);
  if (high - low < 1e-9) [low, high] = [low - 1, high + 1];
  const left = 46, x = (v) => left + (width - left - 12) * v / most, y = (v) => 10 + (height - 38) * (high - v) / (high - low);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img" });
  picture.append(svg("title", {}, `${title}: ${shown.length} points, from ${short(ys[0])} to ${short(ys.at(-1))}, best ${short(high)}`));
  for (const v of [low, (low + high) / 2, high]) {
    picture.append(svg("path", { class: "grid", d: `M${left} ${y(v)}H${width - 12}` }));
    picture.append(svg("text", { class: "dim", x: left - 6, y: y(v) + 4, "text-anchor": "end" }, short(v)));
  }
  for (const part of [0, 0.5, 1]) {
    const anchor = ["start", "middle", "end"][part * 2];
    picture.append(svg("text", { class: "dim", x: x(part * most), y: height - 8, "text-anchor": anchor }, label(part * most)));
  }
  const path = shown.map((p, i) => `${i ? "L" : "M"}${x(p[0]).toFixed(1)} ${y(p[1]).toFixed(1)}`).join("");
  picture.append(svg("path", { class: "line", d: path.includes("L") ? path : `${path}h3` }));
  host.replaceChildren(picture);
}

// ------------------------------------------------------------------------------------------------ text

function setList(host, pairs) {
  if (host.children.length !== pairs.length)
    host.replaceChildren(...pairs.map(() => { const d = element("div"); d.append(element("dt"), element("dd")); return d; }));
  pairs.forEach(([name, value], i) => {
    const [dt, dd] = host.children[i].children;
    setText(dt, name);
    setText(dd, value);
  });
}

function setTable(view, name, rows) {
  const key = JSON.stringify(rows);
  if (view[name + "Key"] === key) return;
  view[name + "Key"] = key;
  view.at[name].replaceChildren(...rows.map((cells) => {
    const row = element("tr");
    row.append(...cells.map((cell) => element("td", cell)));
    return row;
  }));
}

function setShares(view, shares) {
  const kinds = Object.keys(KINDS).filter((k) => k !== "replay" || shares.time_replay);
  if (view.at.bar.children.length !== kinds.length)
    view.at.bar.replaceChildren(...kinds.map((k) => element("span", "", k)));
  kinds.forEach((k, i) => { view.at.bar.children[i].style.width = `${100 * (shares[`time_${k}`] || 0)}%`; });
  const part = (v) => typeof v === "number" ? `${number(100 * v)} %` : "–";
  setList(view.at.shares, [...kinds.map((k) => [KINDS[k], part(shares[`time_${k}`])]), ["cpu of all cores", part(shares.cpu)]]);
  kinds.forEach((k, i) => { view.at.shares.children[i].firstElementChild.className = `key-${k}`; });
}

// Numbers that replace the return in self-play, which would be the first player's.
function describeSelfPlay(found) {
  const points = typeof found.points === "number" ? `${number(found.points, 1)} of ${number(found.games)}` : "not measured";
  const accuracy = typeof found.value_accuracy === "number" ? `${number(100 * found.value_accuracy, 1)} %` : "–";
  return [["value accuracy", accuracy], ["points against random", points]];
}

function showTasks(view, now) {
  const means = now.task_return_means || {}, steps = now.task_steps || {}, found = now.human_normalized || {};
  view.at.tasksPart.hidden = !now.task_return_means;
  setTable(view, "tasks", Object.keys(means).map((task) => [task, number(means[task], 2), number(steps[task])]));
  const texts = Object.entries(found).map(([name, [x, low, high]]) =>
    `${name} ${number(x, 1)} % (${number(low, 1)} … ${number(high, 1)})`);
  setText(view.at.normalized, texts.length ? `human-normalized: ${texts.join(", ")}` : "");
}

function show(view, run) {
  const now = run.now, at = view.at, self = run.self_play;
  setText(at.title, `${run.system} · ${run.env}`);
  setText(at.standing, run.standing);
  at.standing.className = `badge ${run.standing}`;
  setText(at.reason, run.reason);
  setText(at.directory, run.directory);
  for (const button of view.buttons) button.disabled = !run.running || !token;
  if (run.running && !token) setText(at.answer, "Buttons need the token: open the URL that was printed.");
  drawWiring(view, run);
  for (const [node, text] of view.figures) {
    if (text) setText(node, text(now));
    else node.classList.toggle("flows", run.running && now.sps > 0);
  }
  setShares(view, run.shares);
  setText(at.limit, run.limit || (run.running ? "Known after the next report." : "The run has ended, so there is no advice."));
  setText(at.note, run.limit ? "From the mean of the run’s last reports, assuming that other programs use no cores." : "");
  setList(at.numbers, [
    ["agent steps", number(now.steps)], ...(now.frames === now.steps ? [] : [["frames", number(now.frames)]]),
    ["updates", number(now.updates)],
    ["steps/s", number(now.sps)], ["updates/s", number(now.tps, 1)], ["time", clock(now.wall_seconds)],
    ...(self ? describeSelfPlay(self) : [[now.task_return_means ? "mean score of tasks" : "return, 100 games", number(now.episodic_return_mean, 2)]]), ["length", number(now.episodic_length_mean)],
    ["games", number(now.episodes)], ["lag, mean", number(now.lag_mean, 2)], ["lag, max", number(now.lag_max)],
    ["queue depth", number(now.queue_depth, 1)], ["restarts", number(now.restarts)], ["memory, MB", number(now.memory_mb)],
  ]);
  showTasks(view, now);
  setText(at.hint, self && typeof self.points !== "number" ? `Measure points with: ${self.measure}` : "");
  const what = self ? "Value accuracy" : now.task_return_means ? "Mean score" : "Return";
  setText(at.stepsTitle, `${what} by agent steps`);
  setText(at.wallTitle, `${what} by wall time`);
  setText(at.result, self ? "first player" : "return");
  drawCurve(view, "steps", run.curve.map((p) => [p[0], p[2]]), `${what} by agent steps`, short);
  drawCurve(view, "wall", run.curve.map((p) => [p[1], p[2]]), `${what} by wall time`, clock);
  setTable(view, "episodes", run.episodes.map((e) =>
    [number(e.episodic_return, 2), number(e.episodic_length), number(e.steps), clock(e.wall_seconds)]));
  setTable(view, "settings", run.settings.map((s) => [s.name, s.value, s.source]));
  const saved = run.checkpoints.map((c) => `update ${number(c.update)}, ${new Date(1000 * c.seconds).toLocaleTimeString()}`);
  if (at.checkpoints.dataset.key !== saved.join()) {
    at.checkpoints.dataset.key = saved.join();
    at.checkpoints.replaceChildren(...(saved.length ? saved : ["none yet"]).map((line) => element("li", line)));
  }
}

// ------------------------------------------------------------------------------------------------ the loop

async function ask(view, index, what) {
  if (what === "stop" && !confirm("Stop this run? It saves a checkpoint first.")) return;
  try {
    const reply = await fetch(`runs/${index}/${what}`, { method: "POST", headers: { "X-Polyplay-Token": token } });
    setText(view.at.answer, (await reply.json()).answer);
  } catch {
    setText(view.at.answer, "The page's server does not answer.");
  }
}

function makeView(index) {
  const section = document.getElementById("run").content.cloneNode(true).firstElementChild;
  const at = {};
  for (const node of section.querySelectorAll("[data-at]")) at[node.dataset.at] = node;
  const view = { at, figures: [], buttons: [...section.querySelectorAll("button")] };
  for (const button of view.buttons) button.addEventListener("click", () => ask(view, index, button.dataset.ask));
  document.getElementById("runs").append(section);
  return view;
}

// One step a second: a CSS animation is drawn 60 times a second, which took an eighth of a core from the run.
const moves = matchMedia("(prefers-reduced-motion: no-preference)");
let offset = 0;
function moveArrows() {
  if (document.hidden || !moves.matches) return;
  offset = (offset + 3) % 10;
  for (const line of document.querySelectorAll(".flows")) line.setAttribute("stroke-dashoffset", -offset);
}

let runs = [];
function showAll() {
  runs.forEach((run, i) => show(views[i] ||= makeView(i), run));
}

async function refresh() {
  const link = document.getElementById("link");
  try {
    const reply = await fetch("state", { headers: tag ? { "If-None-Match": tag } : {}, cache: "no-store" });
    if (reply.status === 200) {
      tag = reply.headers.get("etag") || "";
      runs = await reply.json();
      showAll();
    }
    setText(link, reply.ok || reply.status === 304 ? "live, updated every 2 s" : `the server answers ${reply.status}`);
  } catch {
    setText(link, "the page's server does not answer; these are the last numbers");
  }
  setTimeout(refresh, EVERY);
}

addEventListener("resize", () => showAll());
setInterval(moveArrows, 1000);
refresh();
