// Opens the trace in the Perfetto UI, which asks for an absolute address: only the browser knows how it got here.
"use strict";
const frame = document.getElementById("timeline");
const trace = new URL(frame.dataset.trace, location.href);
frame.src = `${frame.dataset.viewer}#!/?url=${encodeURIComponent(trace.href)}`;
