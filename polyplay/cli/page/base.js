"use strict";
// What every page needs. Data is only ever text, never markup.

const element = (name, text = "", cls = "") => {
  const made = document.createElement(name);
  made.textContent = text;
  if (cls) made.className = cls;
  return made;
};

const svg = (name, attributes = {}, text = null) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== null) made.textContent = text;
  return made;
};

const number = (value, digits = 0) =>
  typeof value === "number"
    ? value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits })
    : "–";

const setText = (node, text) => { if (node.textContent !== text) node.textContent = text; };
