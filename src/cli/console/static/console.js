// Loads a page again every five seconds while it is seen and nothing is being done on it. Pages work without it.
'use strict';
(() => {
  const EVERY = 5000;
  const changed = (input) => input.type !== 'hidden' && input.defaultValue !== undefined && input.value !== input.defaultValue;
  const isBusy = () => {
    const main = document.getElementById('main');
    return document.hidden || main.dataset.live === undefined || main.contains(document.activeElement) ||
      String(getSelection()).length > 0 || [...main.querySelectorAll('input')].some(changed) ||
      main.querySelector('details[open]') !== null;
  };
  const refresh = async () => {
    if (isBusy()) return;
    try {
      const response = await fetch(location.href, { redirect: 'error' });
      if (!response.ok) return;
      const page = new DOMParser().parseFromString(await response.text(), 'text/html');
      const fresh = page.getElementById('main');
      if (!fresh || isBusy()) return;
      const main = document.getElementById('main');
      const left = [...main.querySelectorAll('.scroll')].map((table) => table.scrollLeft);
      main.replaceWith(fresh);
      fresh.querySelectorAll('.scroll').forEach((table, index) => { table.scrollLeft = left[index] ?? 0; });
    } catch {
      // The next look may succeed.
    }
  };
  setInterval(refresh, EVERY);
  // Whoever opens the text of an incident wants to copy it.
  document.addEventListener('toggle', (event) => {
    const text = event.target.querySelector('textarea');
    if (text && event.target.open) {
      text.select();
      navigator.clipboard?.writeText(text.value).catch(() => {});
    }
  }, true);
})();
