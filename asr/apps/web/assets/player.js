/* A player: play and pause, the words over the waveform on one time axis, and on demand the log-mel picture and the
   most probable tokens of each frame.

     const player = Player(element, {
       audio,       Blob of a file that the browser can decode, or null: then only the words are drawn
       duration,    seconds
       words,       [{text, start, end, kind}], seconds; kind is a class of style.css ("sub", "ins") or absent
       features,    see picture.js (mel), or null: then no log-mel picture
       posterior,   see posterior.js, or null
       onword,      called with the index of the word that is being spoken (-1: none) when it changes
     });
     player.jump(seconds, play)    player.audio (the <audio> element)    player.close()
     Player.decode(blob, sampleRate)    a promise of the samples, mono

   The page must include picture.js, posterior.js (if there are posteriors) and player.js, in this order. A canvas is as
   wide as its visible part and is drawn again on scrolling, because a recording may last hours. The words are buttons;
   the arrow keys go from one to the next. */
"use strict";
const Player = (() => {
  const { clock } = Picture;
  const RATE = 16000; // Hz, of the drawn samples
  const TOKENS_HEIGHT = 128; // pixels
  const LEAST_SCALE = 70, USUAL_SCALE = 190, MOST_SCALE = 600; // pixels per second

  function button(text, label) {
    const element = make("button", "", text);
    element.type = "button";
    if (label) element.setAttribute("aria-label", label);
    return element;
  }

  /* Return the pixels per second at which most words have room, except very short ones. */
  function readable(words) {
    const needed = words.map(({ text, start }, index) => {
      const next = words[index + 1]?.start ?? start + 1;
      return (7.5 * Math.min(text.length, 14) + 9) / Math.max(next - start, 0.05);
    });
    needed.sort((a, b) => a - b);
    return Math.min(Math.max(needed[Math.floor(needed.length * 0.75)] ?? 0, LEAST_SCALE), USUAL_SCALE);
  }

  /* Decode to mono at a rate; the context only decodes and plays nothing. */
  async function decode(blob, sampleRate) {
    const context = new OfflineAudioContext(1, 1, sampleRate);
    const buffer = await context.decodeAudioData(await blob.arrayBuffer());
    const mono = buffer.getChannelData(0).slice();
    for (let channel = 1; channel < buffer.numberOfChannels; channel++) {
      buffer.getChannelData(channel).forEach((sample, i) => { mono[i] += sample; });
    }
    if (buffer.numberOfChannels > 1) mono.forEach((_, i) => { mono[i] /= buffer.numberOfChannels; });
    return mono;
  }

  function start(root, { audio: blob, duration, words = [], features = null, posterior = null, onword = () => {} }) {
    const state = { scale: 0, current: -1, frame: 0, closed: false, samples: null, rate: RATE, failed: "" };
    const shown = { wave: true, mel: false, tokens: false, ruler: true };
    root.replaceChildren();
    root.classList.add("player");
    const audio = make("audio");
    const address = blob ? URL.createObjectURL(blob) : "";
    if (blob) audio.src = address;
    audio.preload = "auto";

    const bar = make("div", "player-bar");
    const play = button("Play");
    play.className = "play primary";
    play.disabled = !blob;
    const time = make("span", "time");
    bar.append(play, time, make("span", "spacer"));
    const timeline = make("div", "timeline");
    timeline.tabIndex = 0;
    timeline.setAttribute("role", "group");
    timeline.setAttribute("aria-label", "Words over time. Left and right arrow keys move by half a second, space plays.");
    const inner = make("div", "timeline-inner"), labels = make("div", "timeline-words"), cursor = make("div", "cursor");
    const canvases = { wave: make("canvas"), mel: make("canvas"), tokens: make("canvas"), ruler: make("canvas", "ruler") };
    for (const canvas of Object.values(canvases)) canvas.setAttribute("aria-hidden", "true");
    inner.append(labels, ...Object.values(canvases), cursor);
    timeline.append(inner);
    const readout = make("output", "readout");
    root.append(bar, timeline, readout, audio);

    const buttons = words.map((word, index) => {
      const one = button(word.text);
      one.tabIndex = index ? -1 : 0;
      one.title = `${word.text}: ${word.start.toFixed(2)} to ${word.end.toFixed(2)} s`;
      if (word.kind) one.classList.add(word.kind);
      one.addEventListener("click", () => jump(word.start, true));
      one.addEventListener("keydown", (event) => rove(event, buttons, one));
      return one;
    });
    labels.append(...buttons);

    const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();
    const total = () => Math.max(duration, 0.01);

    function resize(scale) {
      const fitting = (timeline.clientWidth || 600) / total();
      state.scale = Math.min(Math.max(scale, fitting, 0.5), Math.max(MOST_SCALE, fitting));
      inner.style.width = `${Math.floor(state.scale * total())}px`;
      words.forEach((word, index) => {
        const next = words[index + 1] ? Math.max(words[index + 1].start, word.start) : total();
        buttons[index].style.left = `${word.start * state.scale}px`;
        buttons[index].style.width = `${Math.max(3, Math.min(next - word.start, Math.max(word.end - word.start, 0.6)) * state.scale - 1)}px`;
      });
      draw();
      follow(false);
    }

    function draw() {
      if (state.closed) return;
      const width = Math.min(timeline.clientWidth, Math.ceil(state.scale * total())), from = timeline.scrollLeft / state.scale;
      for (const [name, canvas] of Object.entries(canvases)) canvas.hidden = !shown[name];
      canvases.wave.hidden ||= !state.samples;
      if (!width) return;
      Picture.ruler(canvases.ruler, width, from, state.scale, colour("--muted"));
      if (state.samples && shown.wave) {
        Picture.wave(canvases.wave, width, state, from, state.scale, colour("--s1"));
      }
      if (features && shown.mel) Picture.mel(canvases.mel, width, features, from, state.scale);
      if (posterior && shown.tokens) {
        const context = Picture.fit(canvases.tokens, width, TOKENS_HEIGHT);
        posterior.draw(context, width, TOKENS_HEIGHT, from, state.scale, colour);
      }
    }

    function redraw() {
      cancelAnimationFrame(state.frame);
      state.frame = requestAnimationFrame(draw);
    }

    function tell() {
      const at = audio.currentTime;
      time.textContent = `${clock(at)} of ${clock(total())}`;
      cursor.style.left = `${Math.min(at, total()) * state.scale}px`;
      let current = -1;
      words.forEach((word, index) => {
        if (word.start <= at + 1e-3 && at < Math.max(word.end, word.start + 0.02)) current = index;
      });
      if (!state.begun) current = -1; // no word is marked before playback begins
      if (current !== state.current) {
        buttons[state.current]?.classList.remove("now");
        buttons[current]?.classList.add("now");
        state.current = current;
        onword(current);
      }
      readout.textContent = state.failed || (posterior && shown.tokens ? posterior.describe(at) : "");
    }

    /* Scroll the cursor into view. */
    function follow(always) {
      const x = audio.currentTime * state.scale, left = timeline.scrollLeft, width = timeline.clientWidth;
      if (always && (x < left || x > left + width * 0.9)) timeline.scrollLeft = x - width * 0.1;
      tell();
    }

    function tick() {
      if (state.closed) return;
      follow(true);
      if (!audio.paused) requestAnimationFrame(tick);
    }

    function jump(seconds, start) {
      state.begun = true;
      audio.currentTime = Math.min(Math.max(seconds, 0), total());
      if (start && blob) audio.play().catch(() => {}); // a browser may require a click first
      follow(true);
    }

    play.addEventListener("click", () => { if (audio.paused) audio.play().catch(() => {}); else audio.pause(); });
    for (const name of ["play", "pause", "ended"]) {
      audio.addEventListener(name, () => {
        state.begun = true;
        play.textContent = audio.paused ? "Play" : "Pause";
        tick();
      });
    }
    audio.addEventListener("seeked", () => follow(true));
    audio.addEventListener("error", () => fail());
    for (const canvas of Object.values(canvases)) {
      canvas.addEventListener("click", (event) => {
        jump((timeline.scrollLeft + event.clientX - timeline.getBoundingClientRect().left) / state.scale, false);
      });
    }
    timeline.addEventListener("scroll", redraw);
    timeline.addEventListener("keydown", (event) => {
      if (event.target !== timeline) return;
      const to = { ArrowRight: audio.currentTime + 0.5, ArrowLeft: audio.currentTime - 0.5, Home: 0, End: total() }[event.key];
      if (to !== undefined) jump(to, false);
      else if (event.key === " ") play.click();
      else return;
      event.preventDefault();
    });

    function toggle(name, text) {
      const one = button(text);
      one.dataset.picture = name;
      const press = () => one.setAttribute("aria-pressed", String(shown[name]));
      press();
      one.addEventListener("click", () => {
        shown[name] = !shown[name];
        press();
        draw();
        tell();
      });
      bar.append(one);
    }
    if (blob) toggle("wave", "Waveform");
    if (features) toggle("mel", "Log-mel");
    if (posterior) toggle("tokens", "Tokens");
    const closer = button("−", "Zoom out"), nearer = button("+", "Zoom in");
    closer.addEventListener("click", () => resize(state.scale / 1.6));
    nearer.addEventListener("click", () => resize(state.scale * 1.6));
    bar.append(closer, nearer);

    function fail() {
      state.failed = "This browser cannot decode the audio.";
      play.disabled = true;
      tell();
    }

    const watcher = new ResizeObserver(() => resize(state.scale || readable(words)));
    watcher.observe(timeline);
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    scheme.addEventListener("change", redraw);
    if (blob) {
      decode(blob, RATE).then((samples) => {
        state.samples = samples;
        state.peak = samples.reduce((most, one) => Math.max(most, Math.abs(one)), 0.01);
        draw();
      }, fail);
    }
    tell();

    return {
      audio,
      jump,
      close() {
        state.closed = true;
        audio.pause();
        watcher.disconnect();
        scheme.removeEventListener("change", redraw);
        audio.removeAttribute("src");
        audio.load(); // ends the loading, which would not find the address any more
        if (address) URL.revokeObjectURL(address);
        root.replaceChildren();
      },
    };
  }

  start.decode = decode;
  return start;
})();
