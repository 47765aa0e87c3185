/* Contents from the headings, the ensembles as tabs, and buttons that copy code. */
const list = document.querySelector(".contents ul");
for (const heading of document.querySelectorAll("main h2[id]")) {
  const link = document.createElement("a");
  link.href = "#" + heading.id;
  link.textContent = heading.textContent;
  list.append(document.createElement("li"));
  list.lastChild.append(link);
}
for (const button of document.querySelectorAll(".copy")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(button.parentElement.querySelector("code").textContent);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
}
const names = [...new Set([...document.querySelectorAll("[data-ensemble]")].map((card) => card.dataset.ensemble))];
function show(name) {
  for (const card of document.querySelectorAll("[data-ensemble]")) card.hidden = card.dataset.ensemble !== name;
  for (const tab of document.querySelectorAll(".tab")) {
    tab.setAttribute("aria-selected", tab.textContent === name);
    tab.tabIndex = tab.textContent === name ? 0 : -1;
  }
}
if (names.length > 1) {
  for (const section of document.querySelectorAll("section:has(> [data-ensemble])")) {
    const row = document.createElement("div");
    row.className = "tabs";
    row.setAttribute("role", "tablist");
    row.setAttribute("aria-label", "Ensemble");
    for (const name of names) {
      const tab = document.createElement("button");
      tab.type = "button";
      tab.className = "tab";
      tab.setAttribute("role", "tab");
      tab.textContent = name;
      tab.addEventListener("click", () => show(name));
      row.append(tab);
    }
    row.addEventListener("keydown", (event) => {
      const tabs = [...row.children];
      const at = tabs.indexOf(document.activeElement);
      const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: -1 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      const next = tabs.at(to % tabs.length);
      show(next.textContent);
      next.focus();
    });
    for (const card of section.querySelectorAll("[data-ensemble]")) {
      card.setAttribute("role", "tabpanel");
      card.setAttribute("aria-label", card.dataset.ensemble);
    }
    section.querySelector("[data-ensemble]").before(row);
  }
  show(names[0]);
}
