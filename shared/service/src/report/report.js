"use strict";
(() => {
  const box = document.getElementById("q");
  const shown = document.getElementById("shown");
  const items = [...document.querySelectorAll("[data-f]")].map((e) => [
    e,
    (e.textContent + " " + (e.querySelector(".bar")?.title ?? "")).toLowerCase(),
  ]);
  const filter = () => {
    const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    let n = 0;
    for (const [e, text] of items) {
      const keep = words.every((w) => text.includes(w));
      e.classList.toggle("hide", !keep);
      n += keep;
    }
    shown.textContent = words.length ? n + " of " + items.length + " lines" : "";
    for (const d of document.querySelectorAll("details")) if (words.length) d.open = true;
  };
  document.getElementById("filter").style.display = "flex";
  box.addEventListener("input", filter);
  const asked = new URLSearchParams(location.hash.slice(1)).get("q");
  if (asked) box.value = asked;
  filter();
  addEventListener("beforeprint", () => {
    for (const d of document.querySelectorAll("details")) d.open = true;
  });
})();
