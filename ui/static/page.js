// What the page does better with a script: times in the viewer's zone, buttons that copy, and a page that renews itself.
// Everything works without.
"use strict";
(() => {
  const short = new Intl.DateTimeFormat(undefined, {dateStyle: "medium", timeStyle: "medium"});
  const clock = new Intl.DateTimeFormat(undefined, {timeStyle: "short"});

  const local = (root) => {
    for (const t of root.querySelectorAll("time.clock")) {
      const at = new Date(t.dateTime);
      if (!isNaN(at)) t.textContent = clock.format(at);
    }
    for (const t of root.querySelectorAll("time:not(.ago):not(.clock)")) {
      const at = new Date(t.dateTime);
      if (!isNaN(at)) t.textContent = short.format(at);
    }
    for (const t of root.querySelectorAll("time.ago")) {
      const at = new Date(t.dateTime);
      if (!isNaN(at)) t.title = short.format(at) + " · " + t.title;
    }
  };

  const copies = (root) => {
    if (!navigator.clipboard) return;
    for (const c of root.querySelectorAll(".command")) {
      const b = document.createElement("button");
      b.type = "button";
      b.className = "copy";
      b.textContent = "Copy";
      b.addEventListener("click", async () => {
        try {
          await navigator.clipboard.writeText(c.querySelector("code").textContent);
          b.textContent = "Copied";
        } catch {
          b.textContent = "Not copied";
        }
        setTimeout(() => { b.textContent = "Copy"; }, 2000);
      });
      c.append(b);
    }
  };

  // Where a table has too little room a row is a list: each cell names its column.
  const lists = (root) => {
    for (const table of root.querySelectorAll(".scroll > table:has(thead)")) {
      const names = [...table.tHead.rows[0].cells].map((c) => c.textContent);
      for (const row of table.tBodies[0].rows) [...row.cells].forEach((c, i) => { c.dataset.of = names[i]; });
      table.classList.add("list");
    }
  };

  const main = document.querySelector("main");
  local(document);
  copies(main);
  lists(main);

  const every = Number(main.dataset.live);
  if (!every) return;
  document.querySelector(".live").hidden = false;

  // Nobody's form is taken from under their hands, and nobody's keys lose their place.
  const busy = () => main.querySelector("details:is(.verb, .editor, .fold)[open], button:focus, select:focus") ||
    document.querySelector(":focus-visible:not(main)") || !getSelection().isCollapsed;

  let renewing = false; // a slow answer does not replace a later one
  const renew = async () => {
    if (document.hidden || busy() || renewing) return;
    renewing = true;
    try {
      const answer = await fetch(location.href, {redirect: "error", signal: AbortSignal.timeout(30000)});
      if (!answer.ok) throw new Error(answer.status);
      const next = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (busy()) return;
      const fresh = next.querySelector("main");
      local(fresh);
      copies(fresh);
      lists(fresh);
      for (const d of main.querySelectorAll("details[open][id]")) fresh.querySelector("#" + CSS.escape(d.id))?.setAttribute("open", "");
      const scrolled = [...main.querySelectorAll(".scroll")].map((s) => s.scrollLeft);
      main.replaceChildren(...fresh.childNodes);
      main.querySelectorAll(".scroll").forEach((s, i) => { s.scrollLeft = scrolled[i] || 0; });
      for (const part of ["nav", "footer p"]) {
        const from = next.querySelector(part);
        local(from);
        document.querySelector(part).replaceChildren(...from.childNodes);
      }
      document.querySelector(".live").hidden = false;
      document.documentElement.classList.remove("lost");
    } catch {
      document.documentElement.classList.add("lost");
      document.querySelector(".live").textContent = " · does not answer: this is how it was";
      document.querySelector(".live").hidden = false;
    } finally {
      renewing = false;
    }
  };
  setInterval(renew, every);
})();
