// Fetches the page anew once a second, and shows what is different.

import { byId, load, say, show } from './dom.js';
import { chosen, live, offer, startSince } from './since.js';
import { startWhy } from './why.js';

// The server answers within a second. Nothing is shown as known without an answer of the last silence milliseconds.
const interval = 1000, timeout = 1500, silence = 1900;

// When the last page came, since when the page asks for another one, and the last tick.
let heard = Date.now(), asking = heard, ticked = 0;

function showPage(page) {
	heard = asking = Date.now();
	document.title = page.title;
	for (const { id } of document.querySelectorAll('[data-live]')) {
		if (page.getElementById(id) && (id !== 'most-lists' || chosen === live)) show(id, page);
	}
	offer();
	tick();
}

// tick says how old the values are.
function tick() {
	if (document.hidden) return;
	if (Date.now() - ticked > 1000) asking = Date.now(); // the page itself stood still
	ticked = Date.now();
	const silent = Date.now() - heard > silence, banner = byId('banner');
	document.documentElement.classList.toggle('stale', silent || banner.dataset.up !== 'true');
	if (!silent) return;
	const mode = Date.now() - asking > silence ? 'No connection' : 'Connecting', time = banner.dataset.at.slice(11, 19);
	banner.dataset.state = byId('menu-state').dataset.state = 'wait';
	say(byId('state'), mode);
	say(byId('menu-state'), `${mode}, values of ${time}`);
	say(byId('state-why'), `No news from this page’s server since ${time} UTC: the state is not known. What is below is of that time.`);
	byId('state-more').replaceChildren();
	for (const value of banner.querySelectorAll('#figures div')) {
		value.className = '';
		say(value.lastElementChild, 'not known');
	}
	document.title = mode + ' – pg-ratelimit';
	byId('freshness').classList.add('old');
	say(byId('freshness'), `No news from this page’s server for ${Math.round((Date.now() - heard) / 1000)} s`);
}

async function poll() {
	const began = Date.now();
	try {
		// A page that nobody sees asks nothing.
		if (!document.hidden) showPage(await load('.', { signal: AbortSignal.timeout(timeout) }));
	} catch { /* tick says it */ } finally {
		setTimeout(poll, Math.max(100, interval - (Date.now() - began)));
	}
}

startSince();
startWhy();
new IntersectionObserver((entries) => { document.documentElement.classList.toggle('scrolled', !entries.at(-1).isIntersecting); }).observe(byId('state'));
document.addEventListener('visibilitychange', () => { asking = Date.now(); tick(); });
setInterval(tick, 250);
setTimeout(poll, interval);
