/* Records the microphone to a WAV file.

     const recorder = await Recorder({onprogress});   begins; throws the errors of Microphone; ten times per second, calls
                                                      onprogress(seconds, bytes of the file, loudest sample)
     const blob = await recorder.stop();              16-bit mono WAV, at the microphone's sample rate

   MediaRecorder would give WebM, which is lossy, and which a server without PyAV does not read. */
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
    view.setUint32(16, 16, true); // bytes of the format block
    view.setUint16(20, 1, true); // PCM
    view.setUint16(22, 1, true); // channels
    view.setUint32(24, rate, true);
    view.setUint32(28, 2 * rate, true); // bytes per second
    view.setUint16(32, 2, true); // bytes per sample of all channels
    view.setUint16(34, 16, true); // bits per sample
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

  return async ({ onprogress }) => {
    const blocks = [];
    let samples = 0, loudest = 0, microphone = null; // null while the first blocks arrive, before Microphone returns
    microphone = await Microphone((block) => {
      blocks.push(block);
      for (const sample of block) loudest = Math.max(loudest, Math.abs(sample));
      const before = Math.floor((10 * samples) / microphone?.rate);
      samples += block.length;
      if (!microphone || Math.floor((10 * samples) / microphone.rate) === before) return;
      onprogress(samples / microphone.rate, HEADER_BYTES + 2 * samples, loudest);
      loudest = 0;
    });
    return {
      async stop() {
        await microphone.close();
        return wav(blocks, microphone.rate);
      },
    };
  };
})();
