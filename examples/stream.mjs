// Send audio to a server of asr.serve over its WebSocket, and receive the words while the audio is sent.
//
//     python -m asr.serve runs/mini &
//     arecord -q -t raw -f S16_LE -c 1 -r 16000 |
//       node --experimental-websocket examples/stream.mjs ws://127.0.0.1:8000/stream 16000
//
// prints a line for the words that became final, after the second at which they begin. Node 20.10 needs the option,
// Node 22 does not. In a browser, the samples come from the microphone instead of standard input.

const [address, sampleRate] = process.argv.slice(2);
const socket = new WebSocket(address);

async function send(audio) {
  for await (const samples of audio) socket.send(samples); // 16-bit PCM, at most 256 KiB
  socket.send(JSON.stringify({ end: true }));
}

function fail(reason) {
  console.error(reason);
  process.exit(1);
}

socket.onopen = () => socket.send(JSON.stringify({ sample_rate: Number(sampleRate) }));
socket.onerror = () => fail(`no connection to ${address}`);
socket.onmessage = ({ data }) => {
  const { ready, final = [], error, end } = JSON.parse(data); // `partial` has the words that may still change
  if (error) fail(error);
  if (ready) send(process.stdin);
  if (final.length) console.log(final[0].start.toFixed(2), final.map((word) => word.text).join(" "));
  if (end) socket.close();
};
