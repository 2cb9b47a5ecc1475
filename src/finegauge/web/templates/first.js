// The one script that stands in the page. Once the first frame is on the screen, so that nobody waits for it to
// see the answer, it lays out the rest of the page, then loads htmx and the scripts of static/. A hidden tab
// draws no frame.
"use strict";

const rootUrl = new URL("..", document.querySelector("link[rel=icon]").href); // below a proxy's path, where there is one
const laterUrls = document.currentScript.dataset.later.split(" ").map((path) => new URL(path, rootUrl).href);
const parsed = new Promise((done) => addEventListener("load", done));
const drawn = new Promise((seen) => {
  const look = (list) => list.getEntriesByName("first-contentful-paint").length && seen();
  new PerformanceObserver(look).observe({ type: "paint", buffered: true });
  if (document.hidden) seen();
});
// Until every script has run.
const ready = Promise.all([parsed, drawn]).then(() => new Promise((loaded) => {
  for (const later of document.querySelectorAll("noscript.later")) {
    later.replaceWith(document.createRange().createContextualFragment(later.textContent));
  }
  for (const url of laterUrls) {
    const script = document.createElement("script");
    script.async = false; // in this order
    script.src = url;
    if (url === laterUrls.at(-1)) script.onload = loaded;
    document.head.append(script);
  }
}));
ready.then(() => document.documentElement.classList.add("ready"));
