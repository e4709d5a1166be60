// Refreshes the page every five seconds while it is seen and nothing is being typed. Pages work without it.
'use strict';
(() => {
  const main = () => document.getElementById('main');
  const isBusy = () =>
    document.hidden ||
    document.querySelector('form.confirm') ||
    (document.activeElement && document.activeElement.matches('input, select, button')) ||
    String(getSelection()).length > 0;
  const refresh = async () => {
    if (isBusy()) return;
    try {
      const response = await fetch(location.href, { credentials: 'same-origin', redirect: 'error' });
      if (!response.ok) return;
      const page = new DOMParser().parseFromString(await response.text(), 'text/html');
      const fresh = page.getElementById('main');
      if (!fresh || isBusy()) return;
      const open = document.querySelector('details[open]') !== null;
      main().replaceWith(fresh);
      if (open) document.querySelector('details')?.setAttribute('open', '');
    } catch {
      // The next look may succeed.
    }
  };
  setInterval(refresh, 5000);
})();
