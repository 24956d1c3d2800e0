// Shows what is refused most, what asks most, and what is near its quota.

import { el, bar, byId, list, say, set, visible } from './dom.js';
import { clock, count, joined, percent, plural, until } from './text.js';
import { get, now } from './server.js';
import { ask } from './why.js';

// sender is whom to ask about: the address in the key ip:192.0.2.1 of a counter, and in a network.
const sender = (key) => /^(?:ip:)?((?=.*[.:])[0-9a-f.:]+)(?:\/\d+)?$/i.exec(key)?.[1] ?? key;

const lists = [
	['keys', (r) => sender(r.key), 'refused'], ['users', (r) => r.name, 'refused'], ['addresses', (r) => sender(r.name), 'refused'],
	['rules', null, 'refused'], ['asking', (r) => sender(r.key ?? r.name), 'requests'],
];

const row = () => el('li', {}, el('span', { class: 'who' }), el('span', { class: 'number' }), el('span', { class: 'of' }));

// name is what a row is about: a button that asks why, if there is somebody to ask about.
function name(node, text, who) {
	const is = node.firstElementChild;
	if ((who === null) !== (is.tagName === 'SPAN')) {
		is.replaceWith(who === null ? el('span', { class: 'who' }) : el('button', { type: 'button', class: 'who', onclick: (event) => ask(event.currentTarget.who) }));
	}
	const made = node.firstElementChild;
	made.who = who;
	say(made, visible(text));
	set(made, { title: visible(text) });
}

let live = null; // the section top of the server
let chosen = 'now';
let asked = 0;
let again = 0; // the timer of the next look at a period
let offered = '';

function show(top) {
	for (const [id, who, column] of lists) {
		const rows = top[id], most = Math.max(1, ...rows.map((r) => r[column]));
		const box = byId('top-' + id);
		if (rows.length === 0) {
			list(box, ['nothing'], (text) => text, () => el('li', { class: 'none' }), (node) => say(node, column === 'refused' ? 'none' : 'no requests'));
			continue;
		}
		list(box, rows, (r) => (r.prefix ?? '') + ' ' + r.name, row, (node, r) => {
			name(node, r.text, who?.(r) ?? null);
			say(node.children[1], count(r[column]));
			say(node.children[2], column === 'refused' ? `of ${count(r.requests)}` : r.refused > 0 ? `${count(r.refused)} refused` : '');
			bar(node, r[column] / most);
		});
	}
	const texts = [];
	if (top.from) texts.push(`Since ${clock(top.from, now())}: ${plural(top.requests, 'request')}, ${count(top.refused)} refused, ${count(top.failed)} without a decision.`);
	else texts.push('Nothing is counted yet.');
	if (top.exact === false) texts.push('There were more keys than proxies keep, so counts may be a little too high.');
	if (top.note) texts.push(top.note);
	say(byId('most-note'), visible(texts.join(' ')));
}

// past shows a period, and looks at it again later: a long one costs the database time.
async function past() {
	const mine = ++asked, began = Date.now();
	clearTimeout(again);
	if (document.hidden) {
		again = setTimeout(past, 30000);
		return;
	}
	byId('most').setAttribute('aria-busy', 'true');
	try {
		const top = await get('api/top?since=' + encodeURIComponent(chosen));
		if (mine === asked && chosen !== 'now') show(top);
	} catch (failure) {
		if (mine === asked) say(byId('most-note'), failure.message);
	}
	if (mine !== asked) return;
	byId('most').removeAttribute('aria-busy');
	again = setTimeout(past, Math.max(30000, 20 * (Date.now() - began)));
}

export function showTop(top) {
	live = top;
	if (chosen === 'now') show(top);
}

// kinds are the kinds of changes after which other requests are refused, the telling ones first.
const kinds = ['rule', 'limit', 'tier', 'override', 'user', 'key'];

// changesOf are the changes of these kinds, as options: when, and what was changed.
function changesOf(changes) {
	const name = (c) => c.kind + (c.key_id !== null && c.kind === 'key' ? ' #' + c.key_id : c.ref === null ? 's' : ' ' + c.ref);
	return joined(changes.filter((c) => kinds.includes(c.kind))).map((group) => {
		const at = group[group.length - 1].at;
		const what = [...new Set([...group].sort((a, b) => kinds.indexOf(a.kind) - kinds.indexOf(b.kind)).map(name))];
		return [at, `${clock(at, now(), false)}, changed: ${visible(what.slice(0, 2).join(', '))}${what.length > 2 ? ` and ${what.length - 2} more` : ''}`];
	});
}

// showSince offers the periods: besides the fixed ones, since the last changes of the policy, and since proxies
// started.
export function showSince(changes, proxies) {
	const options = [['now', 'this page is open, live'], ['1h', '1 hour ago'], ['24h', '24 hours ago'], ['7d', '7 days ago'], ['time', 'a time of the last 24 hours …'], ...changesOf(changes).slice(0, 10)];
	const starts = [...proxies].filter((p) => p.up_since).sort((a, b) => (a.up_since < b.up_since ? 1 : -1));
	for (const p of starts.slice(0, 5)) options.push([p.up_since, `${clock(p.up_since, now(), false)}, ${visible(p.node)} started`]);
	const chose = byId('since').value || chosen;
	if (!options.some(([value]) => value === chose)) options.push([chose, clock(chose, now(), false)]);
	const text = JSON.stringify(options);
	if (text === offered) return; // the list may be open
	offered = text;
	list(byId('since'), options, ([value, text]) => value + text, () => el('option', {}), (node, [value, text]) => {
		set(node, { value });
		say(node, text);
	});
	byId('since').value = chose;
}

// last is the last time that it was this hour and minute.
function last(time) {
	const [hour, minute] = time.split(':');
	const at = new Date(now()).setUTCHours(hour, minute, 0, 0);
	return new Date(at > now() ? at - 86400000 : at).toISOString();
}

export function startMost() {
	const period = byId('since'), time = byId('since-time');
	const choose = () => {
		time.parentElement.hidden = period.value !== 'time';
		if (period.value === 'time' && time.value === '') return time.focus();
		chosen = period.value === 'time' ? last(time.value) : period.value;
		asked++;
		clearTimeout(again);
		if (chosen !== 'now') past();
		else if (live) show(live);
	};
	period.addEventListener('change', choose);
	time.addEventListener('change', choose);
}

export function showNear(near) {
	byId('quotas-none').hidden = near.counters.length > 0 || !near.looked;
	say(byId('quotas-note'), visible([near.looked ? `As of ${clock(near.looked, now())}.` : 'The counters are being looked at.', near.note].filter(Boolean).join(' ')));
	list(byId('quotas-list'), near.counters, (c) => c.prefix + ' ' + c.key, () => el('li', {}, el('span', { class: 'who' }), el('span', { class: 'of limit' }), el('div', {}), el('span', { class: 'number' }), el('span', { class: 'of right' }), el('span', { class: 'of right' })), (node, c) => {
		name(node, c.key, sender(c.key));
		const [, limit, meter, share, used, resets] = node.children;
		say(limit, visible(c.rule ? c.rule + '/' + c.limit : c.prefix));
		set(meter, { class: c.percent >= 100 ? 'meter failed' : 'meter' });
		bar(meter, c.percent / 100);
		say(share, percent(c.percent));
		say(used, `${count(c.used)} of ${count(c.quota)}`);
		say(resets, c.resets ? 'resets ' + until(c.resets, now()) : '');
	});
}
