// The playground's forms: what is typed goes to worker.js, and its answer into the page. The address keeps the form.
const PATIENCE = 20000; // milliseconds that an answer may take
const page = document.querySelector("#play");
const status_ = page.querySelector(".status");
const picture = page.querySelector(".picture");
const facts = page.querySelector(".facts");
const costs = page.querySelector(".costs");
const save = page.querySelector(".save");
const forms = new Map([...page.querySelectorAll("form")].map((form) => [form.dataset.kind, form]));
let worker, timer, asked = 0;

function say(text, state) {
  status_.textContent = text;
  page.dataset.state = state;
}

function start() {
  say("Python starts…", "starting");
  worker = new Worker(new URL("worker.js", import.meta.url), { type: "module" });
  worker.onmessage = ({ data }) => {
    if (data.failed) say(`Python does not start: ${data.failed}`, "failed");
    else if (data.names) begin(data.names);
    else if (data.id === asked) show(data);
  };
  worker.onerror = () => say(page.dataset.absent, "failed");
}

function begin(names) {
  for (const [list, texts] of Object.entries(names))
    document.getElementById(list).replaceChildren(...texts.map((text) => Object.assign(document.createElement("option"), { value: text })));
  watch();
}

function watch() {
  clearTimeout(timer);
  timer = setTimeout(() => {
    worker.terminate();
    start();
    asked = 0;
    say("That took longer than 20 seconds and was stopped. Try something smaller.", "error");
  }, PATIENCE);
}

function show(data) {
  clearTimeout(timer);
  picture.innerHTML = data.svg || "";
  facts.replaceChildren(...(data.facts || []).map((text) => Object.assign(document.createElement("li"), { textContent: text })));
  const rows = data.costs || [];
  costs.hidden = !rows.length;
  costs.querySelector("tbody").replaceChildren(...rows.map((cells) => {
    const row = document.createElement("tr");
    row.append(...cells.map((text) => Object.assign(document.createElement("td"), { textContent: text })));
    return row;
  }));
  save.hidden = !data.svg;
  if (data.svg) {
    URL.revokeObjectURL(save.href);
    save.href = URL.createObjectURL(new Blob([data.svg], { type: "image/svg+xml" }));
  }
  if (data.error) say(data.error, "error");
  else say("", "done");
}

function ask(form) {
  const fields = Object.fromEntries(new FormData(form));
  history.replaceState(null, "", "#" + new URLSearchParams({ kind: form.dataset.kind, ...fields }));
  asked += 1;
  if (page.dataset.state === "failed") return;
  worker.postMessage({ id: asked, kind: form.dataset.kind, fields, width: picture.clientWidth });
  if (page.dataset.state === "starting") return; // begin() watches
  say("…", "busy");
  watch();
}

function choose(kind) {
  for (const [name, form] of forms) form.hidden = name !== kind;
  for (const tab of page.querySelectorAll("[role=tab]")) tab.setAttribute("aria-selected", tab.dataset.kind === kind);
  ask(forms.get(kind));
}

function fill(form, fields) {
  for (const [name, value] of Object.entries(fields)) if (form.elements[name]) form.elements[name].value = value;
}

for (const tab of page.querySelectorAll("[role=tab]")) tab.onclick = () => choose(tab.dataset.kind);
for (const form of forms.values()) {
  form.onsubmit = (event) => {
    event.preventDefault();
    ask(form);
  };
  form.onchange = () => ask(form);
}
for (const example of page.querySelectorAll("button[data-fields]"))
  example.onclick = () => {
    const form = example.closest("form");
    fill(form, JSON.parse(example.dataset.fields));
    ask(form);
  };

function fromAddress() {
  const { kind = "layout", ...fields } = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  if (!forms.has(kind)) return choose("layout");
  fill(forms.get(kind), fields);
  choose(kind);
}
window.onhashchange = fromAddress;
if (location.protocol === "file:") say("A browser runs no Python from a file: serve the folder, with python -m http.server.", "failed");
else start();
fromAddress();
