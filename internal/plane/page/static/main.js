// Connects the page with its server, and shows each section that comes.

import { byId, say, visible } from './dom.js';
import { clock, duration } from './text.js';
import { listen, now, openSession, session, setNow } from './server.js';
import { showBanner, showSilence } from './banner.js';
import { showTraffic, startChart } from './chart.js';
import { showNear, showSince, showTop, startMost } from './most.js';
import { startWhy } from './why.js';
import { showLimits, showProxies } from './proxies.js';
import { showBans, showPause, startAct } from './act.js';

const silence = 5000; // milliseconds without news after which the page says so; the server has some each second

const last = { banner: null, changes: [], proxies: null }; // proxies is null until the database has answered
let heard = 0, listening = 0; // when there was news, and since when the page has listened for it
let since = null; // since when the database is down, if it is

const show = {
	banner(b) {
		heard = Date.now();
		since = b.database.up ? null : b.database.since ?? b.at;
		setNow(b.at);
		last.banner = b;
		showBanner(b, last.proxies);
		showPause(b.pause);
		byId('not-recording').hidden = b.recording !== false || b.loading || !b.database.up;
		tick();
	},
	traffic: showTraffic,
	top: showTop,
	near: showNear,
	proxies(section) {
		last.proxies = section.proxies;
		showProxies(section.proxies);
		if (last.banner) showBanner(last.banner, last.proxies);
		showSince(last.changes, last.proxies ?? []);
	},
	limits: (section) => showLimits(section.limits),
	bans: showBans,
	changes(section) {
		last.changes = section.changes;
		showSince(last.changes, last.proxies ?? []);
	},
};

// tick says how old the values are.
function tick() {
	if (heard === 0 || document.hidden) return;
	const silent = Date.now() - heard > silence;
	if (silent) showSilence(clock(last.banner.at, now()), Date.now() - listening > silence);
	document.documentElement.classList.toggle('stale', silent || since !== null);
	byId('freshness').classList.toggle('old', silent || since !== null);
	const time = clock(now(), now()) + ' UTC';
	say(byId('freshness'), silent ? `No news from this page’s server for ${duration((Date.now() - heard) / 1000)}` : since === null || last.proxies === null ? time : `${time}, values of ${clock(since, now())}`);
}

async function start() {
	try {
		await openSession();
	} catch (failure) {
		say(byId('state-why'), visible(failure.message));
		setTimeout(start, 2000);
		return;
	}
	say(byId('where'), visible(session.database));
	startAct();
	let end = null;
	const watch = () => {
		if (!document.hidden && end === null) {
			listening = Date.now();
			end = listen(Object.keys(show), (section, value) => show[section](value), tick);
			tick();
		}
		// A page that nobody sees asks the database nothing.
		if (document.hidden && end !== null) end = end();
	};
	document.addEventListener('visibilitychange', watch);
	watch();
}

startChart();
startMost();
startWhy();
new IntersectionObserver((entries) => { byId('menu-state').hidden = entries.at(-1).isIntersecting; }).observe(byId('state'));
setInterval(tick, 1000);
start();
