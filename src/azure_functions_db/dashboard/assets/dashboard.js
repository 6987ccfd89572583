"use strict";
// The page lives without this script; with it, it stays up to date, draws its plots and can act.
(() => {
  const base = document.body.dataset.base;
  const live = document.getElementById("live");
  const every = Number(document.body.dataset.every) * 1000;
  // A key of the Functions host comes in the address, and is carried on in a header or in links, never written down.
  const key = new URLSearchParams(location.search).get("code");
  const headers = key ? { "x-functions-key": key } : {};
  let range = "hour";
  let plots = [];

  const tell = (text) => {
    const place = document.getElementById("told");
    place.textContent = text;
    clearTimeout(tell.timer);
    tell.timer = setTimeout(() => { place.textContent = ""; }, 8000);
  };

  const carryKey = () => {
    if (!key) return;
    for (const link of document.querySelectorAll("a[href]")) {
      const target = new URL(link.href, location.href);
      if (target.origin !== location.origin || !target.pathname.startsWith(base) || target.searchParams.has("code")) continue;
      target.searchParams.set("code", key);
      link.href = target;
    }
  };

  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const series = {
    rate: [["rate", "rows/s", "--accent"]],
    lag: [["lag", "s", "--warn"]],
    duration: [["fetch", "fetch", "--accent"], ["handler", "handler", "--good"], ["commit", "commit", "--warn"]],
    failures: [["failures", "failed", "--bad"]],
  };

  const draw = () => {
    for (const plot of plots) plot.destroy();
    plots = [];
    const place = document.querySelector("[data-plots]");
    if (!place) return;
    const data = JSON.parse(place.dataset.plots)[range];
    for (const target of place.querySelectorAll("[data-plot]")) {
      const lines = series[target.dataset.plot];
      const axis = { stroke: color("--soft"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line") } };
      const options = {
        width: Math.max(200, target.clientWidth), height: 170,
        legend: { show: lines.length > 1 },
        axes: [axis, { ...axis, size: 56 }],
        scales: { y: { range: (_plot, _low, high) => [0, high > 0 ? high * 1.1 : 1] } },
        series: [{}, ...lines.map(([, label, name]) => ({ label, stroke: color(name), width: 1.5, points: { show: true, size: 4 } }))],
      };
      plots.push(new uPlot(options, [data.at, ...lines.map(([name]) => data[name])], target));
    }
  };

  const find = () => {
    const field = document.getElementById("find");
    if (!field) return;
    const wanted = field.value.toLowerCase();
    for (const row of document.querySelectorAll("table.pollers tbody tr")) row.hidden = !row.textContent.toLowerCase().includes(wanted);
  };

  const settle = () => { carryKey(); find(); draw(); pressRange(); };

  const pressRange = () => {
    for (const button of document.querySelectorAll("[data-range]")) button.setAttribute("aria-pressed", String(button.dataset.range === range));
  };

  // Replace what is shown, and leave the reader where they were: focus, what they typed, how far they scrolled.
  const replace = (html) => {
    const fresh = new DOMParser().parseFromString(html, "text/html");
    const next = fresh.getElementById("live");
    if (!next) return;
    const focused = document.activeElement && live.contains(document.activeElement) ? document.activeElement : null;
    const all = [...live.querySelectorAll("a, button, input, pre")];
    const place = focused ? all.indexOf(focused) : -1;
    const typed = document.getElementById("find")?.value;
    live.replaceChildren(...next.childNodes);
    const field = document.getElementById("find");
    if (field && typed) field.value = typed;
    settle();
    if (place >= 0) [...live.querySelectorAll("a, button, input, pre")][place]?.focus({ preventScroll: true });
    const clock = fresh.getElementById("clock");
    if (clock) document.getElementById("clock").replaceChildren(...clock.childNodes);
  };

  const refresh = async () => {
    const answer = await fetch(location.href, { headers, cache: "no-store" });
    const text = await answer.text();
    // What is replaced between press and release is never clicked: what is new waits for the next time.
    const pressed = document.querySelector("button:active, a:active");
    if (!answer.ok) tell(`The dashboard answers ${answer.status}`);
    else if (!pressed) replace(text);
  };

  const ask = (title, text, word, label) => new Promise((resolve) => {
    const dialog = document.getElementById("confirm");
    const input = document.getElementById("confirm-input");
    document.getElementById("confirm-title").textContent = title;
    document.getElementById("confirm-text").textContent = text;
    document.getElementById("confirm-label").firstChild.textContent = label;
    document.getElementById("confirm-word").textContent = word;
    input.value = "";
    dialog.returnValue = "no";
    dialog.onclose = () => resolve(dialog.returnValue === "yes" ? input.value : null);
    dialog.showModal();
    input.focus();
  });

  const post = async (path, form) => {
    const answer = await fetch(`${base}/api/pollers/${path}`, {
      method: "POST",
      headers: { ...headers, "Content-Type": "application/json", "X-Azfdb-Act": "1" },
      body: JSON.stringify(form),
    });
    const told = await answer.json();
    if (!answer.ok) throw new Error(told.error);
    return told;
  };

  const act = async (button) => {
    const name = decodeURIComponent(location.pathname.slice(base.length).split("/")[2]);
    const path = `${encodeURIComponent(name)}/${button.dataset.act}`;
    const form = {};
    if (button.dataset.error) form.error = button.dataset.error;
    if (button.dataset.id) form.id = button.dataset.id;
    if (button.dataset.ask) {
      const why = await ask(button.textContent, "", "", "Why? ");
      if (why === null) return;
      form.why = why;
    }
    let told = await post(path, form);
    if (!told.done) {
      const typed = await ask(button.textContent, told.text, told.confirm, "Type ");
      if (typed === null) return;
      told = await post(path, { ...form, confirm: typed || "-" });
    }
    tell(told.text);
    await refresh();
  };

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.dataset.range) { range = button.dataset.range; pressRange(); draw(); }
    if (button.dataset.act) act(button).catch((error) => tell(error.message));
    if (button.id === "live-switch") button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") !== "true"));
  });
  document.addEventListener("input", (event) => { if (event.target.id === "find") find(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  addEventListener("resize", draw);

  const tick = async () => {
    const pressed = document.getElementById("live-switch").getAttribute("aria-pressed") === "true";
    if (pressed && !document.hidden && !document.getElementById("confirm").open) await refresh().catch(() => tell("The dashboard does not answer"));
    setTimeout(tick, every);
  };
  settle();
  setTimeout(tick, every);
})();
