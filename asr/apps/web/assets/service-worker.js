/* Caches the page, so that it opens without a network: files come from the server, or, if it does not answer, from the
   cache. recognizer.js stores the large files, model and runtime, in the same cache. asr/apps/export/site.py writes a
   line before these, which defines VERSION of the page and FILES to cache. */
const PREFIX = `asr ${new URL(".", location).pathname} `; // another folder of this server may have another page
const CACHE = PREFIX + VERSION;

addEventListener("install", (event) => {
  const fresh = FILES.map((name) => new Request(name, { cache: "reload" }));
  event.waitUntil(caches.open(CACHE).then((cache) => cache.addAll(fresh)).then(() => skipWaiting()));
});

addEventListener("activate", (event) => {
  const remove = (names) => names.filter((name) => name.startsWith(PREFIX) && name !== CACHE).map((name) => caches.delete(name));
  event.waitUntil(caches.keys().then((names) => Promise.all(remove(names))).then(() => clients.claim()));
});

addEventListener("fetch", (event) => {
  if (!FILES.some((name) => new URL(name, location).href === event.request.url)) return;
  event.respondWith(fetch(event.request).catch(async (error) => {
    const answer = await (await caches.open(CACHE)).match(event.request.url);
    if (!answer) throw error;
    return answer;
  }));
});
