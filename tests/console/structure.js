// What a screen reader and the keyboard go by: one h1, no level left out, one main, names for regions and fields.
() => {
  const wrong = [], all = (which) => [...document.querySelectorAll(which)];
  const text = (each) => each.outerHTML.slice(0, 60);
  const levels = all("h1, h2, h3, h4").map((each) => Number(each.tagName[1]));
  if (levels.filter((each) => each === 1).length !== 1) wrong.push("not one h1");
  levels.forEach((each, at) => {
    if (each > (levels[at - 1] ?? 0) + 1) wrong.push(`h${each} after h${levels[at - 1]}`);
  });
  if (all("main").length !== 1) wrong.push("not one main");
  for (const each of all("nav, [role=region]")) if (!each.ariaLabel) wrong.push(`${text(each)} has no name`);
  for (const each of all("input:not([type=hidden]), select, textarea"))
    if (!each.labels.length && !each.ariaLabel) wrong.push(`${each.name} has no label`);
  for (const each of all("a[href], button, input:not([type=hidden]), .scroll"))
    if (each.tabIndex < 0) wrong.push(`${text(each)} is out of reach`);
  return wrong;
}
