// The actions. Each is asked twice: the server says what it would do, and the reader confirms that.
// What was done stays in a list, with its way back.

import { el, byId, list, say, set, visible } from './dom.js';
import { banText, clock, count } from './text.js';
import { get, now, post, session } from './server.js';

// The name of the reader, for the log of changes. It outlives a reload, if the browser lets the page remember it.
const remembered = 'pg-ratelimit name';
const reader = {
	get name() { return byId('by').value.trim(); },
	set name(name) {
		byId('by').value = name;
		try {
			sessionStorage.setItem(remembered, name);
		} catch { /* it is asked for again */ }
	},
	recall() {
		try {
			byId('by').value ||= sessionStorage.getItem(remembered) ?? '';
		} catch { /* the same */ }
	},
};

// act asks, does, and says at a place, and in the list, what was done. complaint is what is wrong with the name.
export async function act(action, body, place, complaint = '') {
	const anonymous = session.who === null;
	if (anonymous && (complaint !== '' || reader.name === '') && !(await asks({ question: 'Who are you?', effect: complaint === '' ? [] : [complaint] }, true))) return false;
	const whole = anonymous ? { ...body, by: reader.name } : body;
	try {
		const answer = await post('api/' + action, whole);
		if (!(await asks(answer))) return false;
		done(await post('api/' + action, { ...whole, confirm: answer.confirm }), place);
		return true;
	} catch (failure) {
		if (anonymous && failure.field === 'by') return act(action, body, place, failure.message);
		place.replaceChildren(el('p', { class: 'error' }, visible(failure.message)));
		return false;
	}
}

// asks shows a question, and the field of the name if that is what it is about. It is true if the reader agrees.
function asks(question, named = false) {
	const dialog = byId('ask');
	say(byId('ask-title'), visible(question.question));
	byId('ask-effect').replaceChildren(...question.effect.map((text) => el('li', {}, visible(text))));
	byId('ask-by-label').hidden = !named;
	byId('ask-by').value = reader.name;
	set(byId('ask-yes'), { class: question.danger ? 'strong danger' : 'strong' });
	say(byId('ask-yes'), named ? 'Continue' : 'Yes, do it');
	return new Promise((resolve) => {
		dialog.returnValue = '';
		dialog.addEventListener('close', () => {
			if (named && dialog.returnValue === 'yes') reader.name = byId('ask-by').value.trim();
			resolve(dialog.returnValue === 'yes');
		}, { once: true });
		dialog.showModal();
		if (named) byId('ask-by').select();
	});
}

// done says what was done, with the way back: at the place where the reader is, and in the list.
function done(result, place) {
	byId('done-none').hidden = true;
	const buttons = [];
	const way = (place) => {
		if (!result.undo) return [];
		const button = el('button', { type: 'button', class: 'small' }, visible(result.undo.label));
		button.addEventListener('click', async () => {
			if (await act(result.undo.action, result.undo.body, place)) for (const one of buttons) one.remove();
		});
		buttons.push(button);
		return [button];
	};
	const outcome = el('div', { class: 'outcome', tabindex: -1 });
	byId('done').prepend(el('li', {}, el('time', {}, clock(now(), now())), el('span', {}, visible(result.done)), way(outcome), outcome));
	place.replaceChildren(el('span', {}, visible(result.done)), ...way(place));
	place.focus({ preventScroll: true });
	place.scrollIntoView({ block: 'nearest' });
	document.dispatchEvent(new Event('acted'));
}

// offer fills the form of an action and takes the reader there.
export function offer(action, who) {
	const form = byId('form-' + action);
	form.elements.who.value = who;
	form.elements.who.dispatchEvent(new Event('change'));
	form.scrollIntoView({ block: 'center' });
	form.elements.who.focus({ preventScroll: true });
}

// whom reads who is meant: #7 is an API key, an address or a network is one, and all else a user.
function whom(typed) {
	const text = typed.trim();
	const key = /^#\s*(\d+)$/.exec(text);
	if (key) return { key_id: Number(key[1]) };
	if (/^\d{1,3}(\.\d{1,3}){3}(\/\d{1,2})?$/.test(text) || /^[0-9a-f:.]*:[0-9a-f:.]*(\/\d{1,3})?$/i.test(text)) return { network: text };
	return { user: text };
}

// on makes the submission of a form an action.
function on(action, body) {
	const form = byId('form-' + action), outcome = form.querySelector('.outcome');
	form.addEventListener('submit', (event) => {
		event.preventDefault();
		outcome.replaceChildren();
		act(action, body(form.elements), outcome);
	});
}

// limitsOf offers the limits of a user: first those of its next request and its counters, then all rules. Until they
// are known, none can be chosen. The choice stays if the limits are asked for again.
async function limitsOf(who, select, again = false) {
	const chosen = again ? select.value : '';
	const mine = (select.asked = (select.asked ?? 0) + 1);
	const own = new Map(), others = new Map();
	const named = who.trim() !== '';
	select.replaceChildren(el('option', { value: '' }, named ? 'asking for its limits …' : 'first say for whom'));
	if (!named) return;
	try {
		const answer = await post('api/why', { who, kind: whom(who).key_id ? 'key_id' : 'user' });
		for (const l of answer.next?.explanation.limits ?? []) if (l.quota !== null) own.set(JSON.stringify([l.rule, l.limit]), `${l.rule}/${l.limit}: now ${count(l.quota)}`);
		for (const c of answer.counters) if (c.rule && c.quota !== null && !own.has(JSON.stringify([c.rule, c.limit]))) own.set(JSON.stringify([c.rule, c.limit]), `${c.rule}/${c.limit}: now ${count(c.quota)}`);
	} catch { /* the action itself says what is wrong */ }
	try {
		for (const name of (await get('api/names?kind=rule&begins=')).names) others.set(JSON.stringify([name, '']), `${name}: all limits`);
	} catch { /* the same */ }
	if (mine !== select.asked) return;
	const options = (from) => [...from].map(([value, text]) => el('option', { value }, visible(text)));
	select.replaceChildren(...(own.size > 0 ? [el('optgroup', { label: 'applies to ' + visible(who) }, options(own))] : []), others.size > 0 ? el('optgroup', { label: 'rules' }, options(others)) : el('option', { value: '' }, 'no rule is known'));
	if ([...select.options].some((o) => o.value === chosen)) select.value = chosen;
}

export function showBans(bans) {
	byId('bans-none').hidden = bans.bans.length > 0;
	list(byId('bans'), bans.bans, (b) => b.kind + ' ' + b.banned, (b) => {
		const target = { network: () => ({ network: b.banned }), user: () => ({ user: b.banned }), key: () => ({ key_id: Number(b.banned) }) }[b.kind];
		return el('li', {}, el('span', {}), el('button', { type: 'button', class: 'small', onclick: () => act('unban', target(), byId('bans-outcome')) }, 'Unban'));
	}, (node, b) => {
		say(node.firstElementChild, visible(banText(b, now())));
		set(node.lastElementChild, { 'aria-label': visible(`Unban ${b.kind} ${b.banned}`) });
	});
	say(byId('bans-more'), bans.total > bans.bans.length ? `… and ${count(bans.total - bans.bans.length)} more` : '');
}

export function showPause(pause) {
	byId('resume').hidden = pause === null;
}

export function startAct() {
	byId('act').hidden = byId('nav-act').hidden = !session.write;
	byId('read-only').hidden = session.write;
	if (!session.write) return;
	byId('by-label').hidden = session.who !== null;
	say(byId('act-who'), session.who === null ? '' : visible(`In the log of changes as ${session.who}.`));
	on('pause', (f) => ({ for: f.for.value, reason: f.reason.value }));
	on('ban', (f) => ({ ...whom(f.who.value), for: f.for.value, reason: f.reason.value }));
	on('override', (f) => {
		const [rule, limit] = JSON.parse(f.limit.value || '["",""]');
		const { network, ...who } = whom(f.who.value);
		return { ...(network ? { user: network } : who), rule, limit, percent: Number(f.percent.value), until: f.until.value, reason: f.reason.value };
	});
	const override = byId('form-override').elements;
	override.who.addEventListener('change', () => limitsOf(override.who.value, override.limit));
	limitsOf('', override.limit);
	document.addEventListener('acted', () => limitsOf(override.who.value, override.limit, true));
	byId('resume').addEventListener('click', () => act('resume', {}, byId('form-pause').querySelector('.outcome')));
	byId('ask-no').addEventListener('click', () => byId('ask').close('no'));
	byId('by').addEventListener('change', () => { reader.name = reader.name; });
	reader.recall();
}
