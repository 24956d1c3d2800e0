// Shows the state of the limits, to be read at one look.

import { el, byId, list, say, set, visible } from './dom.js';
import { clock, milliseconds, none, rate } from './text.js';
import { now } from './server.js';

const unknown = 'not known';

const modes = {
	enforcing: 'Enforcing', paused: 'Paused', shadow: 'Shadow', failing_open: 'Failing open', failing_closed: 'Failing closed', failing_local: 'Local limits',
	database_down: 'Database down', no_proxies: 'No proxies', no_limits: 'No limits',
};

function policy(p, up) {
	if (up && p.all_obey) return ['obeyed by all', ''];
	if (!up || p.behind.length === 0) return [unknown, 'warn'];
	return [p.behind.length === 1 ? `not by ${visible(p.behind[0].node)}` : `not by ${p.behind.length} proxies`, 'warn'];
}

// failing is which proxies let requests pass without a decision, or limit by themselves.
function failing(proxies, how) {
	const all = proxies.filter((p) => p.failing === how);
	return all.length === 0 ? [proxies.length === 0 ? none : 'no proxy', ''] : [all.length === 1 ? visible(all[0].node) : `${all.length} proxies`, 'bad'];
}

// without is what becomes of requests while a proxy has no decision of the database; null: the proxy does not say.
function without(p) {
	if (p.kind === null) return null;
	return p.on_error.length === 0 || p.on_error.includes('allow') ? 'open' : p.on_error.includes('local') ? 'local' : 'closed';
}

// failingWithout is which proxies let requests pass while the database is down, by their settings.
function failingWithout(live) {
	const open = live.filter((p) => without(p) === 'open');
	if (open.length === 0) return live.length > 0 && live.every((p) => without(p) !== null) ? ['no proxy', ''] : [unknown, 'warn'];
	return ['without it: ' + failing(open.map((p) => ({ ...p, failing: 'open' })), 'open')[0], 'bad'];
}

// headline is the mode, and while the database is down what becomes of requests.
function headline(b, live) {
	const mode = modes[b.mode] ?? b.mode;
	const ways = live.map(without);
	if (b.mode !== 'database_down' || live.length === 0 || ways.includes(null)) return mode;
	if (live.every((p) => p.on_error.every((way) => way === 'allow'))) return mode + ': without it, requests pass';
	if (ways.includes('open')) return mode + ': without it, some requests pass';
	if (ways.includes('local')) return mode + ': without it, proxies limit by themselves';
	return mode + ': without it, requests are refused';
}

// show fills the banner. old is the time of the values, if they are not of now.
function show(level, mode, headline, text, notes, figures, old) {
	set(byId('banner'), { 'data-state': level });
	say(byId('state'), headline);
	say(byId('state-why'), visible(text));
	document.title = mode + ' – pg-ratelimit';
	set(byId('menu-state'), { 'data-state': level });
	say(byId('menu-state'), old === null ? mode : `${mode}, values of ${old}`);
	list(byId('state-more'), notes, (note) => note.replace(/\d+/g, ''), () => el('li', {}), (node, note) => say(node, visible(note)));
	list(byId('figures'), figures, ([name]) => name, ([name]) => el('div', {}, el('dt', {}, name), el('dd', {})), (node, [, value, kind]) => {
		set(node, { class: kind });
		say(node.lastElementChild, value);
	});
}

// reason puts the last part of an error first: the beginning says only where it happened.
function reason(error) {
	const last = error.split(': ').pop();
	return last === error ? `The error is: ${error}` : `The error is: ${last}. In full: ${error}`;
}

export function showBanner(b, proxies) {
	const database = b.database;
	const live = (proxies ?? []).filter((p) => p.live);
	const old = database.up || proxies === null ? null : clock(database.since ?? b.at, now());
	const notes = [...b.notes];
	if (!database.up) notes.unshift(`${old === null ? 'Nothing is known yet.' : `What is below is of ${old}.`}${database.error ? ' ' + reason(database.error) : ''}`);
	const rates = b.now ?? {};
	show({ ok: 'good', warn: 'warn', bad: 'bad' }[b.level] ?? 'wait', modes[b.mode] ?? b.mode, headline(b, live), b.text, notes, [
		['Allowed', b.now ? rate(rates.allowed) + '/s' : none, ''],
		['Refused', b.now ? rate(rates.refused) + '/s' : none, ''],
		['No decision', b.now ? rate(rates.failed) + '/s' : none, rates.failed > 0 ? 'bad' : ''],
		b.mode === 'failing_local' ? ['Local limits', ...failing(proxies ?? [], 'local')] : ['Failing open', ...(database.up ? failing(proxies ?? [], 'open') : failingWithout(live))],
		['Database', database.up ? milliseconds(database.latency_ms) : 'down', database.up ? '' : 'bad'],
		['Newest policy', ...policy(b.policy, database.up)],
	], old);
}

// showSilence says that nothing is known since a time. gone is whether the server of this page has had time to answer.
export function showSilence(time, gone) {
	const mode = gone ? 'No connection' : 'Connecting';
	show('wait', mode, mode, `No news from this page’s server since ${time} UTC: the state is not known. What is below is of that time.`, [],
		['Allowed', 'Refused', 'No decision', 'Failing open', 'Database', 'Newest policy'].map((name) => [name, unknown, '']), time);
}
