"use strict";
(() => {
  const form = document.getElementById("filter");
  const samples = [...document.querySelectorAll(".sample")];
  const shown = document.getElementById("shown");
  const nothing = document.getElementById("nothing");
  const openAll = document.getElementById("open-all");
  const texts = new Map();

  const textOf = (sample) => {
    if (!texts.has(sample)) texts.set(sample, sample.textContent.toLowerCase());
    return texts.get(sample);
  };

  const fits = (sample, wanted) =>
    (!wanted.outcome || sample.dataset.outcome === wanted.outcome) &&
    (!wanted.reason || sample.dataset.reasons.split("\n").includes(wanted.reason)) &&
    (!wanted.text || textOf(sample).includes(wanted.text));

  const filter = () => {
    const wanted = Object.fromEntries(new FormData(form));
    wanted.text = wanted.text.trim().toLowerCase();
    let count = 0;
    for (const sample of samples) {
      sample.hidden = !fits(sample, wanted);
      count += !sample.hidden;
    }
    shown.textContent = `${count} of ${samples.length}`;
    nothing.hidden = count > 0;
  };

  // A link to a row opens it, whatever the filters hide.
  const openTarget = () => {
    const sample = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!sample || !sample.classList.contains("sample")) return;
    form.reset();
    filter();
    sample.open = true;
    sample.scrollIntoView({ block: "start" });
  };

  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  openAll.addEventListener("click", () => {
    const visible = samples.filter((sample) => !sample.hidden);
    const open = !visible.every((sample) => sample.open);
    for (const sample of visible) sample.open = open;
    openAll.textContent = open ? "Close all" : "Open all";
  });
  window.addEventListener("hashchange", openTarget);
  filter();
  openTarget();
})();
