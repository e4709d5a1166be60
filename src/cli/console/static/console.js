// Loads a page again every five seconds while it is seen and nothing is being done on it. Pages work without it.
'use strict';
(() => {
  const EVERY = 5000;
  let seen = new Date();
  const changed = (input) => input.type !== 'hidden' && input.value !== input.defaultValue;
  const isBusy = () => {
    const main = document.getElementById('main');
    return document.hidden || main.dataset.live === undefined || main.contains(document.activeElement) ||
      String(getSelection()).length > 0 || [...main.querySelectorAll('input')].some(changed) ||
      main.querySelector('details[open]') !== null;
  };
  const warn = () => {
    const main = document.getElementById('main');
    const note = main.querySelector('.stale') ?? main.insertBefore(document.createElement('p'), main.firstChild);
    note.className = 'problem stale';
    note.setAttribute('role', 'status');
    note.textContent = `This page is of ${seen.toLocaleTimeString()}: it cannot be loaded again.`;
  };
  const refresh = async () => {
    if (isBusy()) return;
    try {
      const response = await fetch(location.href, { redirect: 'manual' });
      // The token was taken out.
      if (response.type === 'opaqueredirect') return location.reload();
      if (!response.ok) return warn();
      const page = new DOMParser().parseFromString(await response.text(), 'text/html');
      const fresh = page.getElementById('main');
      if (!fresh || isBusy()) return;
      const main = document.getElementById('main');
      const left = [...main.querySelectorAll('.scroll')].map((table) => table.scrollLeft);
      main.replaceWith(fresh);
      fresh.querySelectorAll('.scroll').forEach((table, index) => { table.scrollLeft = left[index] ?? 0; });
      seen = new Date();
    } catch {
      warn();
    }
  };
  setInterval(refresh, EVERY);
  // Whoever opens the text of an incident wants to copy it.
  document.addEventListener('toggle', (event) => event.target.querySelector('textarea')?.select(), true);
})();
