/* Buttons that turn into players: <button class="listen" data-clip="NAME">, with the attachment NAME, base64 of Ogg. */
"use strict";
for (const button of document.querySelectorAll("button.listen")) {
  button.addEventListener("click", () => {
    const base64 = document.getElementById(button.dataset.clip)?.textContent;
    if (!base64) return; // the page is still loading
    const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
    const audio = document.createElement("audio");
    audio.controls = true;
    audio.src = URL.createObjectURL(new Blob([bytes], { type: "audio/ogg" }));
    audio.setAttribute("aria-label", button.getAttribute("aria-label"));
    button.replaceWith(audio);
    audio.play();
  });
}
