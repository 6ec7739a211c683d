/* Samples of the microphone.

     const microphone = await Microphone(onblock, onlost);   asks for permission, starts; throws the browser's errors;
                                                             onblock(Float32Array) receives each block of samples,
                                                             onlost() is called when the microphone is unplugged or
                                                             its permission is revoked
     microphone.rate                                         the microphone's sample rate, Hz
     await microphone.close()
     Microphone.obstacle()                                   why the microphone cannot be used here, or ""
     Microphone.problem(error)                               describes an error of Microphone

   It loads collector.js. */
"use strict";
const Microphone = (() => {
  async function open(onblock, onlost = () => {}) {
    const stream = await navigator.mediaDevices.getUserMedia({ audio: { channelCount: 1 } });
    const context = new AudioContext();
    const close = async () => {
      stream.getTracks().forEach((track) => track.stop()); // this causes no "ended" event
      if (context.state !== "closed") await context.close();
    };
    try {
      await context.audioWorklet.addModule("collector.js");
    } catch {
      await close();
      throw new DOMException("collector.js cannot be loaded", "NetworkError");
    }
    const collector = new AudioWorkletNode(context, "collector", { numberOfOutputs: 0 });
    collector.port.onmessage = ({ data }) => onblock(data);
    stream.getTracks().forEach((track) => track.addEventListener("ended", onlost));
    context.createMediaStreamSource(stream).connect(collector);
    await context.resume();
    return { rate: context.sampleRate, close };
  }

  open.obstacle = () => {
    if (!isSecureContext) return "Browsers allow the microphone only over https, or on this machine as localhost.";
    if (!navigator.mediaDevices?.getUserMedia || !window.AudioWorkletNode) return "This browser cannot record.";
    return "";
  };

  const PROBLEMS = {
    NotAllowedError: "The browser was not allowed to use the microphone. Allow the microphone for this page in the browser's settings.",
    NotFoundError: "There is no microphone.",
    NetworkError: "The server cannot be reached, or collector.js is missing there.",
  };
  open.problem = ({ name, message }) => PROBLEMS[name] ?? `The microphone cannot be used: ${message}`;

  return open;
})();
