// What htmx does not do: what each field holds put beside it, tabs, a switch laid over the fields, the link.
"use strict";

const byId = (id) => document.getElementById(id);
const form = byId("question");

// What is asked of htmx waits until every script can hear of it.
const trigger = (where, event) => ready.then(() => htmx.trigger(where, event));

// An edit is asked about at once where it is a choice, after a pause where somebody types.
const PAUSE_MS = 16;
let pause;
byId("inputs").addEventListener("input", (event) => {
  clearTimeout(pause);
  pause = setTimeout(() => trigger("#asker", "edited"), event.target.tagName === "SELECT" ? 0 : PAUSE_MS);
});

// Beside each field what the server told of it: its value where nobody fills it in, who said so, what is
// wrong. Only what changes is touched, so that the browser lays out no more than that.
function tell(told) {
  const answered = byId("problem").hidden;
  for (const one of told.querySelectorAll("i")) {
    const { field, value, origin, error } = one.dataset;
    const control = byId(`f-${field}`);
    if (!control) continue;
    tellError(control, field, error);
    const own = control.value !== "";
    if (control.tagName === "SELECT") control.classList.toggle("unset", !own);
    if (!answered) continue;
    write(byId(`o-${field}`), origin);
    if (control.tagName === "SELECT") {
      const named = own || [...control.options].find((option) => option.value && option.value === value);
      write(control.options[0], own ? "not set" : named?.textContent || value || "–");
    } else if (control.tagName === "INPUT") {
      const placeholder = own ? "" : value || "–";
      if (control.placeholder !== placeholder) control.placeholder = placeholder;
    }
  }
}

function element(tag, properties, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

function write(element, text) {
  if (element && element.textContent !== text) element.textContent = text;
}

function tellError(control, field, error) {
  write(byId(`e-${field}`), error);
  if (error) control.setAttribute("aria-invalid", "true");
  else if (control.hasAttribute("aria-invalid")) control.removeAttribute("aria-invalid");
  if (error) for (let at = control.closest("details"); at; at = at.parentElement.closest("details")) at.open = true;
}

function heard() {
  const told = byId("told");
  tell(told);
  byId("said").textContent = told.dataset.said;
  byId("link").value = new URL(told.dataset.link, location.href).href;
  byId("link-note").textContent = told.dataset.tooLong
    ? "The inputs are too long for a link; download the run file."
    : "The link contains the inputs; it opens on this machine only.";
  refresh();
}

// Fields laid over the form: lines of "field=value".
function lay(lines) {
  let last = null;
  for (const line of lines.split("\n")) {
    const at = line.indexOf("=");
    const control = byId(`f-${line.slice(0, at)}`);
    if (!control) continue;
    const value = line.slice(at + 1);
    if (control.tagName === "SELECT" && ![...control.options].some((option) => option.value === value)) {
      control.add(new Option(value, value));
    }
    control.value = value;
    last = control;
  }
  last?.dispatchEvent(new Event("input", { bubbles: true }));
}

function show(tab) {
  for (const other of document.querySelectorAll("[role=tab]")) {
    const chosen = other === tab;
    other.setAttribute("aria-selected", String(chosen));
    other.tabIndex = chosen ? 0 : -1;
    byId(other.getAttribute("aria-controls")).hidden = !chosen;
  }
  refresh();
}

// What an open panel asks the server for by itself.
function refresh() {
  for (const one of document.querySelectorAll("[role=tabpanel]:not([hidden]) [data-asks]")) trigger(one, "refresh");
}

function problem(text) {
  const line = document.createElement("p");
  line.textContent = text;
  byId("problem").replaceChildren(line);
  byId("problem").hidden = false;
  byId("said").textContent = text;
}

document.addEventListener("htmx:oobAfterSwap", (event) => {
  if (event.detail.target.id === "glance") heard();
});
document.addEventListener("htmx:afterSwap", (event) => {
  const told = event.target.querySelector?.(".plan-told");
  if (told) for (const one of told.children) tellError(byId(`f-${one.dataset.field}`), one.dataset.field, one.dataset.error);
});
document.addEventListener("htmx:responseError", (event) => {
  if (event.detail.target.id === "advice") return; // its button stays, to ask again
  const { status, responseText } = event.detail.xhr;
  const plain = responseText && responseText.length < 500 && !responseText.includes("<") ? responseText.trim() : "";
  problem(plain || `The server answered ${status}; the answer below is to earlier inputs.`);
});
document.addEventListener("htmx:timeout", () => problem("The server has not answered for a minute; change a field to ask again."));
document.addEventListener("htmx:sendError", () => problem("The server does not answer: is 'finegauge serve' still running?"));

document.addEventListener("click", (event) => {
  const tab = event.target.closest("[role=tab]");
  const apply = event.target.closest(".apply");
  if (tab) show(tab);
  if (apply) lay(apply.dataset.fields);
});
document.addEventListener("keydown", (event) => {
  const at = event.target;
  if (at.getAttribute("role") === "tab" && ["ArrowLeft", "ArrowRight", "Home", "End"].includes(event.key)) {
    const tabs = [...document.querySelectorAll("[role=tab]")];
    const to = { ArrowLeft: tabs.indexOf(at) - 1, ArrowRight: tabs.indexOf(at) + 1, Home: 0, End: -1 }[event.key];
    const tab = tabs.at(to % tabs.length);
    show(tab);
    tab.focus();
    event.preventDefault();
  }
  if (at.inputMode === "decimal" && ["ArrowUp", "ArrowDown"].includes(event.key)) {
    const value = Number(at.value || at.placeholder);
    if (!Number.isFinite(value) || at.value + at.placeholder === "") return;
    at.value = String(Math.max(event.key === "ArrowUp" ? value + 1 : value - 1, 1));
    at.dispatchEvent(new Event("input", { bubbles: true }));
    event.preventDefault();
  }
});
form.addEventListener("submit", (event) => {
  if (event.submitter?.hasAttribute("formaction")) return; // a file to keep
  event.preventDefault();
  byId("f-document").dispatchEvent(new Event("input", { bubbles: true }));
});
async function take(file) {
  const area = byId("f-document");
  area.value = file.size > area.maxLength ? "" : await file.text();
  if (file.size > area.maxLength) problem(`${file.name} is larger than the page reads.`);
  else area.dispatchEvent(new Event("input", { bubbles: true }));
}
byId("open").addEventListener("change", async (event) => {
  const [file] = event.target.files;
  if (file) await take(file);
  event.target.value = "";
});
for (const kind of ["dragover", "drop"]) {
  addEventListener(kind, (event) => {
    if (![...event.dataTransfer.types].includes("Files")) return;
    event.preventDefault(); // the browser would leave the page for the file
    const [file] = event.dataTransfer.files;
    if (kind === "drop" && file) take(file);
  });
}
byId("share").addEventListener("click", async () => {
  const button = byId("share");
  try {
    await navigator.clipboard.writeText(byId("link").value);
    button.textContent = "Link copied";
  } catch {
    show(byId("tab-keep"));
    byId("link").select();
  }
  setTimeout(() => { button.textContent = "Copy link"; }, 1500);
});
show(document.querySelector("[role=tab][aria-selected=true]"));
byId("link").value = new URL(byId("told").dataset.link, location.href).href;
