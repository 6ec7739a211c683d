/* Runs in the browser's audio thread, for microphone.js: passes on the first channel of what the microphone hears. */
"use strict";
registerProcessor("collector", class extends AudioWorkletProcessor {
  process([channels]) {
    if (channels.length) this.port.postMessage(channels[0].slice()); // its own array is used again
    return true;
  }
});
