// Asks the server for its state once a second, and shows each section of it.

import { byId, say, visible } from './dom.js';
import { clock, duration } from './text.js';
import { first, get, now, session, setNow } from './server.js';
import { showBanner, showSilence } from './banner.js';
import { showTraffic, startChart } from './chart.js';
import { showNear, showSince, showTop, startMost } from './most.js';
import { startWhy } from './why.js';
import { showLimits, showProxies } from './proxies.js';
import { showBans, showPause, startAct } from './act.js';

// The server answers within a second. Nothing is shown as known without an answer of the last silence milliseconds.
const interval = 1000, timeout = 1500, silence = 1900;

let state = null; // the last one
let heard = 0, asking = 0, ticked = 0; // when the state came, since when the page asks for another one, and the last tick

function show(answer) {
	heard = Date.now();
	state = { ...state, ...answer };
	const b = state.banner;
	setNow(b.at);
	showBanner(b, state.proxies !== undefined);
	showPause(b.pause);
	byId('not-recording').hidden = b.recording !== false || b.loading || !b.database.up;
	if (state.proxies) {
		showProxies(state.proxies.proxies);
		showTraffic(state.traffic, state.changes.changes);
		showTop(state.top);
		showNear(state.near);
		showLimits(state.limits.limits);
		showBans(state.bans);
		showSince(state.changes.changes, state.proxies.proxies);
	}
	tick();
}

// tick says how old the values are.
function tick() {
	if (document.hidden) return;
	if (Date.now() - ticked > 1000) asking = Date.now(); // the page itself stood still
	ticked = Date.now();
	const b = state.banner, silent = Date.now() - heard > silence;
	if (silent) showSilence(b, clock(b.at, now()), Date.now() - asking > silence);
	const old = silent || !b.database.up;
	document.documentElement.classList.toggle('stale', old);
	byId('freshness').classList.toggle('old', old);
	const time = clock(now(), now()) + ' UTC';
	say(byId('freshness'), silent ? `No news from this page’s server for ${duration((Date.now() - heard) / 1000)}` : b.database.up || !state.proxies ? time : `${time}, values of ${clock(b.database.since ?? b.at, now())}`);
}

async function poll() {
	const began = Date.now();
	try {
		const answer = document.hidden ? null : await get('api/state', timeout).catch(() => null); // a page that nobody sees asks nothing
		if (answer !== null) {
			asking = Date.now();
			show(answer);
		}
	} finally {
		setTimeout(poll, Math.max(100, interval - (Date.now() - began)));
	}
}

startChart();
startMost();
startWhy();
startAct();
say(byId('where'), visible(session.database));
asking = Date.now();
show(first.state);
new IntersectionObserver((entries) => { byId('menu-state').hidden = entries.at(-1).isIntersecting; }).observe(byId('state'));
document.addEventListener('visibilitychange', () => { asking = Date.now(); tick(); });
setInterval(tick, 250);
setTimeout(poll, interval);
