// Answers "why was X refused?": first in a sentence, then with what the sentence rests on.

import { el, bar, byId, say, visible } from './dom.js';
import { banText, clock, count, duration, none, percent, until } from './text.js';
import { now, post, session } from './server.js';
import { act, offer } from './act.js';

let asked = 0;

// ask opens the section and asks about somebody.
export function ask(who) {
	byId('why-who').value = who;
	byId('why-at').value = '';
	byId('why-outcome').replaceChildren();
	byId('why').scrollIntoView();
	byId('why-who').focus({ preventScroll: true });
	answer();
}

async function answer() {
	const mine = ++asked;
	const field = (name) => byId('why-form').elements[name].value.trim();
	say(byId('why-error'), '');
	const request = `${field('method') || 'GET'} ${field('host')}${field('path') || '/'}`;
	byId('why-answer').setAttribute('aria-busy', 'true');
	try {
		const found = await post('api/why', { who: byId('why-who').value, kind: field('kind'), at: field('at'), method: field('method'), path: field('path') || '/', host: field('host'), address: field('address') });
		if (mine === asked) show(found, request);
	} catch (failure) {
		if (mine !== asked) return;
		byId('why-said').replaceChildren();
		byId('why-answer').replaceChildren();
		say(byId('why-error'), visible(failure.message));
	}
	if (mine === asked) byId('why-answer').removeAttribute('aria-busy');
}

function box(kind, sentence) {
	return el('p', { class: 'answer ' + kind }, visible(sentence, 2000));
}

// table makes a table of columns [name, cell of an item, class].
function table(title, columns, items, empty) {
	return [el('h3', {}, title), items.length === 0 ? el('p', { class: 'nothing' }, empty) : el('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': title }, el('table', { class: 'folds' },
		el('thead', {}, el('tr', {}, columns.map(([name, , kind]) => el('th', { scope: 'col', class: kind }, name)))),
		el('tbody', {}, items.map((item) => el('tr', {}, columns.map(([name, cell, kind]) => el('td', { class: kind, 'data-name': name }, el('div', {}, cell(item)))))))))];
}

const text = (value) => el('bdi', {}, visible(value ?? none));
const kinds = { allowed: 'good', limited: 'bad', blocked: 'bad', rejected: 'bad', error: 'warn' };
const windowOf = (l) => (l.calendar ? 'calendar ' + l.calendar : { 1: 'second', 60: 'minute', 3600: 'hour', 86400: 'day' }[l.seconds] ?? duration(l.seconds));
const request = (d) => [d.method, (d.host ?? '') + (d.path ?? '')].filter(Boolean).join(' ');

const decisionColumns = [
	['Time', (d) => clock(d.time, now()), 'time'],
	['Decision', (d) => el('span', { class: 'tag ' + (kinds[d.decision] ?? '') }, d.decision + (d.count > 1 ? ' × ' + count(d.count) : ''))],
	['Why', (d) => text(d.text)],
	['Request', (d) => el('bdi', { class: 'code' }, visible(request(d) || none))],
	['Address', (d) => text(d.address), 'short'],
	['Proxy', (d) => text(d.node), 'short'],
];

const limitColumns = [
	['Limit', (l) => text(l.rule + '/' + l.limit + (l.shadow ? ' (shadow)' : ''))],
	['Allows', (l) => (l.quota === null ? 'unlimited' : count(l.quota) + (l.algorithm === 'in_flight' ? ' in flight' : ' per ' + windowOf(l)))],
	['Costs', (l) => count(l.cost) + (l.settle ? ', settle ' + visible(l.settle) : '')],
	['Set by', (l) => (l.amount_from === 'rule' ? 'the rule' : 'an override of the ' + l.amount_from)],
	['Left', (l) => count(l.left), 'right'],
	['Resets', (l) => (l.algorithm !== 'in_flight' && l.reset && Date.parse(l.reset) > now() ? until(l.reset, now()) : none)],
	['Next request', (l) => el('span', { class: 'tag ' + (l.passes ? 'good' : 'bad') }, l.passes ? 'passes' : l.retry_after ? 'refused for ' + duration(Math.ceil(l.retry_after)) : 'refused')],
];

const counterColumns = () => [
	['Counter', (c) => text(c.prefix)],
	['Key', (c) => text(c.key)],
	['Used', (c) => `${count(c.used)} of ${count(c.quota)}`, 'right'],
	['Share', (c) => { const meter = el('div', { class: 'meter' + (c.percent >= 100 ? ' failed' : '') }); bar(meter, c.percent / 100); return [percent(c.percent), meter]; }, 'share'],
	['Resets', (c) => (c.resets ? until(c.resets, now()) : none)],
	...(session.write ? [['Reset', (c) => button('Give all back', 'reset', { prefix: c.prefix, key: c.key })]] : []),
];

const ruleColumns = [
	['Rule', (r) => text(r.name)], ['Does', (r) => r.action + (r.mode === 'enforce' ? '' : ', ' + r.mode)],
	['Applies', (r) => (r.applies ? 'yes' : 'no')], ['Why', (r) => text(r.why)],
];

// button is an action beside what it changes.
const button = (label, action, body) => el('button', { type: 'button', class: 'small', onclick: () => act(action, body, byId('why-outcome')) }, label);

function override(o, user) {
	const text = `${o.rule}/${o.limit}: ${o.events === null ? 'unlimited' : count(o.events)}${o.key_id === null ? '' : ' for the key ' + o.key_id}, ${o.valid_until === null ? 'without an end' : 'until ' + until(o.valid_until, now())}${o.reason ? ': ' + o.reason : ''}`;
	const holder = o.key_id === null ? { user } : { key_id: o.key_id };
	return session.write && o.valid_until !== null ? [visible(text), ' ', button('Take back', 'unoverride', { ...holder, rule: o.rule, limit: o.limit })] : visible(text);
}

function facts(a) {
	const lines = (items, empty) => (items.length === 0 ? empty : el('ul', {}, items.map((line) => el('li', {}, line))));
	const user = a.user;
	const rows = [['Taken for', visible(a.taken)], ['Plan', user?.tier ? visible(user.tier) + (user.tier_until ? ', until ' + until(user.tier_until, now()) : '') : 'none in the policy'], ['Bans', lines(a.bans.map((b) => visible(banText(b, now()))), 'none')]];
	if (user) {
		rows.push(['Overrides', lines(user.overrides.map((o) => override(o, user.user)), 'none')]);
		rows.push(['API keys', lines(user.keys.map((k) => visible(`#${k.id}${k.name ? ' ' + k.name : ''}${k.hint ? ' (' + k.hint + ')' : ''}: ${k.state}${k.tier ? ', plan ' + k.tier : ''}`)), 'none')]);
	}
	return el('dl', { class: 'facts' }, rows.map(([name, value]) => [el('dt', {}, name), el('dd', {}, value)]));
}

function actions(a) {
	if (!session.write) return [];
	const banned = a.bans.length > 0;
	return el('div', { class: 'offers' },
		a.kind === 'user' && el('button', { type: 'button', class: 'small', onclick: () => offer('override', a.who) }, 'Give more …'),
		!banned && ['user', 'address', 'key_id'].includes(a.kind) && el('button', { type: 'button', class: 'small', onclick: () => offer('ban', a.kind === 'key_id' ? '#' + a.who.replace('#', '') : a.who) }, 'Ban …'));
}

function show(a, request) {
	const refused = a.decisions.some((d) => kinds[d.decision] === 'bad');
	byId('why-said').replaceChildren(box(refused ? 'bad' : '', a.summary), ...(a.next ? [box(a.next.passes ? 'good' : 'bad', a.next.text.replace(/^The next request/, () => `Now, ${request}`))] : []), el('p', { class: 'nothing' }, `As of ${clock(now(), now())} UTC.`));
	const parts = [facts(a), actions(a)];
	const e = a.next?.explanation;
	if (e) parts.push(table('Limits of the next request', limitColumns, e.limits, 'No limit applies to it.'));
	parts.push(table('Counters', counterColumns(), a.counters, 'Nothing is counted now.'));
	parts.push(table('Last 20 decisions', decisionColumns, a.decisions, 'None is recorded.'));
	if (a.decisions_note) parts.push(el('p', { class: 'nothing' }, visible(a.decisions_note)));
	if (e && e.rules.length > 0) parts.push(el('details', {}, el('summary', {}, `All rules (${count(e.rules.length)})`), table('Rules', ruleColumns, e.rules)));
	byId('why-answer').replaceChildren(...parts.flat(Infinity));
}

export function startWhy() {
	byId('why-form').addEventListener('submit', (event) => {
		event.preventDefault();
		byId('why-outcome').replaceChildren();
		answer();
	});
	document.addEventListener('acted', () => { if (byId('why-said').hasChildNodes()) answer(); });
}
