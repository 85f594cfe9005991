// Opens the trace in the Perfetto UI, which asks for an absolute address: only the browser knows how it got here.
// Embedded, it has no menu to open other traces with, and does not speak of cookies that nobody sets.
"use strict";
const frame = document.getElementById("timeline");
const trace = new URL(frame.dataset.trace, location.href);
frame.src = `${frame.dataset.viewer}#!/?mode=embedded&url=${encodeURIComponent(trace.href)}`;
