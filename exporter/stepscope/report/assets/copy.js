"use strict";
// Buttons that copy the text of the element that their data-copy names. The live page replaces them: one listener.
(() => {
  document.documentElement.classList.add("scripted"); // without scripts the buttons are not shown

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    const source = document.getElementById(button.dataset.copy);
    const copied = await copy("value" in source ? source.value : source.textContent);
    const said = button.parentElement.querySelector("[role=status]");
    said.textContent = copied ? "Copied." : "The browser did not allow it. Select the text and copy it.";
  });

  // Pages that come over plain HTTP have no clipboard; the old command still works there.
  async function copy(text) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      const copied = document.execCommand("copy");
      area.remove();
      return copied;
    }
  }
})();
