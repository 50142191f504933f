// SPDX-License-Identifier: Apache-2.0
// What pages need besides htmx: they say whether they are live, and let go of their event stream while nobody sees them
// (a browser has six connections to a host, and each page that is open would keep one).
"use strict";
(() => {
  const HIDDEN_MILLISECONDS = 30000;
  let source = null;
  let letGo = null;
  let isAsleep = false;

  function say(text, isLive) {
    const place = document.getElementById("liveness");
    if (!place || place.textContent === text) return;
    place.textContent = text;
    place.classList.toggle("live", isLive);
    place.classList.toggle("lost", !isLive);
  }

  document.addEventListener("htmx:sseOpen", (event) => {
    source = event.detail.source;
    say("Live", true);
  });
  document.addEventListener("htmx:sseError", () => {
    if (!isAsleep) say("Not live: the controller does not answer. The page shows how things were.", false);
  });
  document.addEventListener("htmx:sseClose", (event) => {
    if (event.detail.type === "message") say("Not live: you are signed out. Reload the page to sign in.", false);
  });

  document.addEventListener("visibilitychange", () => {
    window.clearTimeout(letGo);
    if (document.hidden) {
      letGo = window.setTimeout(() => {
        if (!source) return;
        isAsleep = true;
        source.close();
      }, HIDDEN_MILLISECONDS);
    } else if (isAsleep) {
      window.location.reload();
    }
  });
})();
