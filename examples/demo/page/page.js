"use strict";
(() => {
  const at = (id) => document.getElementById(id);
  const cell = (text, kind) => {
    const td = document.createElement("td"), span = document.createElement("span");
    span.textContent = text;
    if (kind) span.className = kind;
    td.append(span);
    return td;
  };

  const drawn = (p) => {
    const tr = document.createElement("tr"), th = document.createElement("th");
    th.scope = "row";
    th.textContent = p.Account;
    tr.append(th, cell("committed", "done"),
      p.Outbox ? cell("waits", "wait") : cell("taken", "done"),
      p.Records ? cell(p.Records === 1 ? "1 record" : p.Records + " records", "done") : cell("–"),
      p.Parked ? cell("parked", "wait") : p.Inbox ? cell("id known", "done") : cell("–"),
      p.Entries ? p.Entries === 2 ? cell("booked once", "done") : cell("booked " + p.Entries / 2 + " times!", "wrong") : cell("–"),
      p.Mail === "sent" ? cell("sent once", "done") : p.Mail ? cell(p.Mail, "wait") : cell("–"));
    return tr;
  };

  const verdict = (c) => {
    const twice = Math.max(c.Wrong, c.Mails - c.Payments);
    if (twice > 0) return ["lost", "Wrong: " + twice + (twice === 1 ? " payment" : " payments") + " not booked or mailed exactly once."];
    const ended = c.Payments === c.Pairs + c.Parked && c.Payments === c.Mails;
    if (!ended) {
      const n = Math.max(c.Payments - c.Pairs - c.Parked, c.Payments - c.Mails);
      return ["way", "On their way: " + n + (n === 1 ? " payment." : " payments.")];
    }
    const more = c.Records - c.Payments;
    return ["ok", (c.Parked ? c.Parked + " parked; all others: one" : "Each payment: one") + " ledger pair and one mail" +
      (more > 0 ? ", though Kafka has " + more + " records too many." : ".")];
  };

  const draw = (s) => {
    const c = s.Counts;
    at("payments").textContent = c.Payments;
    at("records").textContent = c.Records;
    at("pairs").textContent = c.Pairs;
    at("mails").textContent = c.Mails;
    const [kind, text] = verdict(c);
    at("verdict").className = kind;
    at("verdict").textContent = text;
    at("kafka").textContent = s.KafkaAway ? "Bring Kafka back" : "Take Kafka away";
    at("parts").replaceChildren(...s.Parts.map((p) => {
      const span = document.createElement("span");
      span.className = p.Runs ? "" : "down";
      span.textContent = p.Name + (p.Runs ? " runs · " : " is dead · ");
      return span;
    }), s.KafkaAway ? "Kafka is away" : "Kafka answers");
    at("lines").replaceChildren(...(s.Lines || []).map((line) => {
      const li = document.createElement("li");
      li.textContent = line;
      return li;
    }));
    if (s.Busy && !(s.Lines || []).length) at("lines").textContent = "At work: " + s.Busy;
    for (const b of document.querySelectorAll("button")) {
      b.disabled = s.Busy !== "" || b.id === "thaw" && !s.Frozen || b.id === "kafka" && !s.MayTakeKafka ||
        s.KafkaAway && ["deliver-again", "kill-ledger"].includes(b.dataset.do);
    }
    at("way").replaceChildren(...(s.Payments || []).map(drawn));
  };

  const look = async () => {
    try {
      const answer = await fetch("state", {signal: AbortSignal.timeout(10000)});
      if (!answer.ok) throw new Error(await answer.text());
      draw(await answer.json());
    } catch {
      at("verdict").className = "lost";
      at("verdict").textContent = "The demo does not answer: this is how it was.";
    }
    setTimeout(look, 400);
  };

  for (const b of document.querySelectorAll("button")) {
    b.addEventListener("click", async () => {
      b.disabled = true;
      const answer = await fetch("do/" + b.dataset.do, {method: "POST"});
      if (!answer.ok) at("verdict").textContent = await answer.text();
    });
  }
  look();
})();
