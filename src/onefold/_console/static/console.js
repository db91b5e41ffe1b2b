// Live updates: an element with data-live="URL" is kept current by the server's events. Each event is the name of an
// element's id and its new HTML, made and escaped by the server. Without script the pages are the same, and stand still.
"use strict";

for (const place of document.querySelectorAll("[data-live]")) {
  const source = new EventSource(place.dataset.live);
  source.addEventListener("fragment", (event) => {
    const cut = event.data.indexOf("\n");
    const element = document.getElementById(event.data.slice(0, cut));
    if (element === null || element.contains(document.activeElement)) return;
    const parsed = new DOMParser().parseFromString(event.data.slice(cut + 1), "text/html");
    element.replaceChildren(...parsed.body.childNodes);
  });
  source.addEventListener("end", () => source.close());
  addEventListener("pagehide", () => source.close());
}
