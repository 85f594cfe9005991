// Looks for new runs while the page is seen: the same page is asked for, and what differs is put in.
"use strict";
const EVERY_MS = 5000;
let shown = document.getElementById("runs").innerHTML;

async function renew() {
  if (document.hidden) return;
  let text;
  try {
    const answer = await fetch(location.href);
    if (!answer.ok) return;
    text = await answer.text();
  } catch {
    return; // The server is gone; what was shown stays.
  }
  const form = document.getElementById("runs");
  const now = new DOMParser().parseFromString(text, "text/html").getElementById("runs");
  if (!now || now.innerHTML === shown) return;
  shown = now.innerHTML;
  const chosen = [...form.querySelectorAll("input:checked")].map((input) => [input.name, input.value]);
  const focused = document.activeElement;
  if (form.contains(focused) && focused.matches("input")) chosen.focused = [focused.name, focused.value];
  form.replaceChildren(...now.childNodes);
  for (const input of form.querySelectorAll("input")) {
    const is = (pair) => pair && pair[0] === input.name && pair[1] === input.value;
    input.checked = chosen.some(is);
    if (is(chosen.focused)) input.focus();
  }
}

setInterval(renew, EVERY_MS);
document.addEventListener("visibilitychange", renew);
