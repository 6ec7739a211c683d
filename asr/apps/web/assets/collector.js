/* Runs in the browser's audio thread, for microphone.js: passes on the first channel of the microphone. */
"use strict";
registerProcessor("collector", class extends AudioWorkletProcessor {
  process([channels]) {
    if (channels.length) this.port.postMessage(channels[0].slice()); // a copy: the browser reuses the array
    return true;
  }
});
