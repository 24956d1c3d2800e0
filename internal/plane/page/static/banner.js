// Shows the state of the limits, to be read at one look.

import { el, byId, list, say, set, visible } from './dom.js';
import { clock, milliseconds, none, rate } from './text.js';
import { now } from './server.js';

const modes = {
	enforcing: 'Enforcing', paused: 'Paused', shadow: 'Shadow', failing_open: 'Failing open', failing_closed: 'Failing closed', failing_local: 'Local limits',
	database_down: 'Database down', no_proxies: 'No proxies', no_limits: 'No limits',
};

function policy(p) {
	if (p.all_obey) return ['obeyed by all', ''];
	if (p.behind.length === 0) return ['not known', 'warn'];
	return [p.behind.length === 1 ? `not by ${visible(p.behind[0].node)}` : `not by ${p.behind.length} proxies`, 'warn'];
}

// failing is which proxies let requests pass without a decision, or limit by themselves.
function failing(proxies, how) {
	const all = proxies.filter((p) => p.failing === how);
	return all.length === 0 ? [proxies.length === 0 ? none : 'no proxy', ''] : [all.length === 1 ? visible(all[0].node) : `${all.length} proxies`, 'bad'];
}

export function showBanner(b, proxies) {
	const database = b.database;
	set(byId('banner'), { 'data-state': { ok: 'good', warn: 'warn', bad: 'bad' }[b.level] ?? 'wait' });
	say(byId('state'), modes[b.mode] ?? b.mode);
	say(byId('state-why'), visible(b.text));
	document.title = (modes[b.mode] ?? b.mode) + ' – pg-ratelimit';
	const notes = [...b.notes];
	if (!database.up) notes.unshift(`${proxies === null ? 'Nothing is known yet.' : `What is below is of ${clock(database.since ?? b.at, now())}.`}${database.error ? ' The error is: ' + database.error : ''}`);
	list(byId('state-more'), notes, (note) => note.replace(/\d+/g, ''), () => el('li', {}), (node, note) => say(node, visible(note)));
	const rates = b.now ?? {};
	const figures = [
		['Allowed', b.now ? rate(rates.allowed) + '/s' : none, ''],
		['Refused', b.now ? rate(rates.refused) + '/s' : none, ''],
		['Failed', b.now ? rate(rates.failed) + '/s' : none, rates.failed > 0 ? 'bad' : ''],
		b.mode === 'failing_local' ? ['Local limits', ...failing(proxies ?? [], 'local')] : ['Failing open', ...(database.up ? failing(proxies ?? [], 'open') : ['not known', 'warn'])],
		['Database', database.up ? milliseconds(database.latency_ms) : 'down', database.up ? '' : 'bad'],
		['Newest policy', ...policy(b.policy)],
	];
	list(byId('figures'), figures, ([name]) => name, ([name]) => el('div', {}, el('dt', {}, name), el('dd', {})), (node, [, value, kind]) => {
		set(node, { class: kind });
		say(node.lastElementChild, value);
	});
}
