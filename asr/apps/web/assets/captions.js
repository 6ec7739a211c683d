/* Captions of live speech: samples of the microphone go to /stream, a WebSocket, and words come back.

     const captions = await Captions({onready, onwords, onend});   begins; throws the errors of Microphone
       onready({note})                            the server is ready; `note`: a limitation of its captions
       onwords({final, partial, isEnd, seconds, latency})   newly final words; provisional words as text; whether a
                                                  segment of speech has ended; seconds recognised; latency: see below
       onend(problem)                             the stream has ended; `problem`: why, or "" if it was stopped
     captions.stop()                              waits for the words of the audio sent, then calls onend("")

   Latencies are in seconds; the first two are medians over the last words. `words`: from the sending of the last sample
   that a word needs to the arrival of the word. `final`: from the sending of a word's last sample to the arrival of the
   final word. `unsent`: audio that the connection has not accepted yet. */
"use strict";
const Captions = (() => {
  const MESSAGE_SECONDS = 0.04;
  const KEPT_SECONDS = 60; // the times at which this last part of the audio was sent are stored
  const UNSENT_SECONDS = 30; // with more unsent audio, the connection is too slow
  const PATIENCE = 15; // timeout for the last words, seconds
  const RECENT = 15; // words in the median of latency

  const median = (values) => [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)];

  function pcm(blocks, length) {
    const view = new DataView(new ArrayBuffer(2 * length));
    let at = 0;
    for (const block of blocks) {
      for (const sample of block) {
        view.setInt16(at, Math.round(32767 * Math.min(Math.max(sample, -1), 1)), true);
        at += 2;
      }
    }
    return view.buffer;
  }

  /* The times at which audio was sent, by second of the stream. */
  function Clock() {
    const sent = []; // [second of the stream, milliseconds of the page]
    return {
      tell(second) {
        sent.push([second, performance.now()]);
        while (second - sent[0][0] > KEPT_SECONDS) sent.shift();
      },
      since(second) {
        const at = sent.find(([end]) => end >= second - 1e-6) ?? sent.at(-1);
        return (performance.now() - at[1]) / 1000;
      },
    };
  }

  return async ({ onready, onwords, onend }) => {
    const clock = Clock(), late = { words: [], final: [] };
    let blocks = [], length = 0, samples = 0, over = false, stopping = false, microphone = null, socket = null;

    async function end(problem) {
      if (over) return;
      over = true;
      socket?.close();
      await microphone?.close();
      onend(problem);
    }

    function send() {
      if (!length || socket?.readyState !== WebSocket.OPEN) return; // later audio is buffered
      socket.send(pcm(blocks, length));
      samples += length;
      clock.tell(samples / microphone.rate);
      [blocks, length] = [[], 0];
      if (socket.bufferedAmount > 2 * UNSENT_SECONDS * microphone.rate) end("The connection is too slow for live audio.");
    }

    function show({ final, partial, is_end: isEnd, heard }) {
      late.words.push(clock.since(heard));
      late.final.push(...final.map((word) => clock.since(word.end)));
      for (const values of Object.values(late)) values.splice(0, values.length - RECENT);
      const latency = { words: median(late.words), final: median(late.final) };
      latency.unsent = socket.bufferedAmount / (2 * microphone.rate);
      onwords({ final: final.map((word) => word.text), partial, isEnd, seconds: heard, latency });
    }

    microphone = await Microphone((block) => {
      if (over || stopping) return;
      blocks.push(block);
      length += block.length;
      if (microphone && length >= MESSAGE_SECONDS * microphone.rate) send();
    }, () => end("The microphone was disconnected."));

    socket = new WebSocket(`${location.origin.replace(/^http/, "ws")}/stream`);
    const names = document.getElementById("hotwords")?.value.split("\n").filter((line) => line.trim()) ?? [];
    const first = { sample_rate: microphone.rate, ...(names.length && { hotwords: names }) };
    socket.addEventListener("open", () => socket.send(JSON.stringify(first)));
    socket.addEventListener("message", ({ data }) => {
      const event = JSON.parse(data);
      if (event.ready) onready(event);
      else if (event.final) show(event);
      else if (event.error) end(event.error[0].toUpperCase() + event.error.slice(1));
      else if (event.end) end("");
    });
    socket.addEventListener("close", ({ code }) => {
      // The browser does not report why a connection was refused.
      end(samples || code !== 1006 ? "The connection to the server was lost." : "The server cannot be reached, or it does not accept this page.");
    });

    return {
      async stop() {
        if (stopping || over) return;
        stopping = true;
        await microphone.close();
        if (socket.readyState !== WebSocket.OPEN) return end("");
        send();
        socket.send(JSON.stringify({ end: true }));
        setTimeout(() => end("The server did not send the last words."), 1000 * PATIENCE);
      },
    };
  };
})();
