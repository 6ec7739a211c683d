/* Records the microphone as samples, and makes a WAV file of them.

     const recorder = await Recorder({onprogress});   asks the browser, and begins; throws what it says; ten times a
                                                      second: onprogress(seconds, bytes of the file, loudest sample)
     const blob = await recorder.stop();              16-bit mono WAV, at the microphone's own rate
     Recorder.obstacle()                              why it cannot work here, or ""

   It loads collector.js. MediaRecorder would give WebM, which libsndfile does not read. */
"use strict";
const Recorder = (() => {
  const HEADER_BYTES = 44;

  function wav(blocks, rate) {
    const length = blocks.reduce((sum, block) => sum + block.length, 0);
    const view = new DataView(new ArrayBuffer(HEADER_BYTES + 2 * length));
    const write = (at, text) => [...text].forEach((one, i) => view.setUint8(at + i, one.charCodeAt(0)));
    write(0, "RIFF");
    view.setUint32(4, 36 + 2 * length, true);
    write(8, "WAVEfmt ");
    view.setUint32(16, 16, true); // bytes of the format
    view.setUint16(20, 1, true); // PCM
    view.setUint16(22, 1, true); // channels
    view.setUint32(24, rate, true);
    view.setUint32(28, 2 * rate, true); // bytes a second
    view.setUint16(32, 2, true); // bytes a sample of all channels
    view.setUint16(34, 16, true); // bits
    write(36, "data");
    view.setUint32(40, 2 * length, true);
    let at = HEADER_BYTES;
    for (const block of blocks) {
      for (const sample of block) {
        view.setInt16(at, Math.round(32767 * Math.min(Math.max(sample, -1), 1)), true);
        at += 2;
      }
    }
    return new Blob([view], { type: "audio/wav" });
  }

  async function start({ onprogress }) {
    const stream = await navigator.mediaDevices.getUserMedia({ audio: { channelCount: 1 } });
    const context = new AudioContext(), blocks = [];
    const close = () => {
      stream.getTracks().forEach((track) => track.stop());
      return context.close();
    };
    try {
      await context.audioWorklet.addModule("collector.js");
    } catch (error) {
      await close();
      throw error;
    }
    const collector = new AudioWorkletNode(context, "collector", { numberOfOutputs: 0 });
    let samples = 0, loudest = 0;
    collector.port.onmessage = ({ data }) => {
      blocks.push(data);
      for (const sample of data) loudest = Math.max(loudest, Math.abs(sample));
      const before = Math.floor((10 * samples) / context.sampleRate);
      samples += data.length;
      if (Math.floor((10 * samples) / context.sampleRate) === before) return;
      onprogress(samples / context.sampleRate, HEADER_BYTES + 2 * samples, loudest);
      loudest = 0;
    };
    context.createMediaStreamSource(stream).connect(collector);
    await context.resume();
    return {
      async stop() {
        const rate = context.sampleRate;
        await close();
        return wav(blocks, rate);
      },
    };
  }

  start.obstacle = () => {
    if (!isSecureContext) return "Browsers allow the microphone only over https, or on this machine as localhost.";
    if (!navigator.mediaDevices?.getUserMedia || !window.AudioWorkletNode) return "This browser cannot record.";
    return "";
  };
  return start;
})();
