// The actions. Each is asked twice: the server says what it would do, and the reader confirms that.
// What was done stays in a list, with its way back.

import { ask, byId, el, say, visible } from './dom.js';

// The field with the name of the reader, for the log of changes; null: the server knows it. The name outlives a reload, if
// the browser lets the page remember it.
const by = byId('ask-by'), remembered = 'pg-ratelimit name';

// act asks, does, and says at a place, and in the list, what was done.
async function act(action, body, place) {
	try {
		const answer = await ask(action, body);
		if (!(await asks(answer))) return false;
		done(await ask(action, { ...body, confirm: answer.confirm, ...(by && { by: by.value.trim() }) }), place);
		return true;
	} catch (failure) {
		place.replaceChildren(el('p', { class: 'error' }, visible(failure.message)));
		return false;
	}
}

// asks shows a question. It is true if the reader agrees.
function asks(question) {
	const dialog = byId('ask');
	say(byId('ask-title'), visible(question.question));
	byId('ask-effect').replaceChildren(...question.effect.map((text) => el('li', {}, visible(text))));
	byId('ask-yes').className = question.danger ? 'strong danger' : 'strong';
	return new Promise((resolve) => {
		dialog.returnValue = '';
		dialog.addEventListener('close', () => {
			try {
				if (by) sessionStorage.setItem(remembered, by.value.trim());
			} catch { /* it is asked for again */ }
			resolve(dialog.returnValue === 'yes');
		}, { once: true });
		dialog.showModal();
		(by?.value === '' ? by : byId('ask-no')).focus();
	});
}

// done says what was done, with the way back: at the place where the reader is, and in the list.
function done(result, place) {
	byId('done-none').hidden = true;
	const way = result.undo ? [el('button', { type: 'button', class: 'small', 'data-act': result.undo.action, 'data-body': JSON.stringify(result.undo.body) }, visible(result.undo.label))] : [];
	byId('done').prepend(el('li', {}, el('time', {}, byId('banner').dataset.at.slice(11, 19)), el('span', {}, visible(result.done)), ...way, el('div', { class: 'outcome', tabindex: -1 })));
	place.replaceChildren(el('span', {}, visible(result.done)), ...way.map((button) => button.cloneNode(true)));
	place.focus({ preventScroll: true });
	place.scrollIntoView({ block: 'nearest' });
	document.dispatchEvent(new Event('acted'));
}

// press does the action of a button, and says so at the nearest place for it. A way back is offered once.
async function press(button) {
	const { act: action, body } = button.dataset, once = button.closest('#done, .outcome') !== null;
	let place = button.closest('.outcome');
	for (let around = button; place === null; around = around.parentElement) place = around.querySelector(':scope > .outcome');
	if (await act(action, JSON.parse(body), place) && once) {
		for (const same of document.querySelectorAll('[data-act]')) if (same.dataset.act === action && same.dataset.body === body) same.remove();
	}
}

// offer fills the form of an action and takes the reader there.
function offer(action, who) {
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
		const answer = await ask('why', { who, kind: whom(who).key_id ? 'key_id' : 'user' }), next = answer.next?.explanation;
		for (const l of [...(next?.limits ?? []), ...answer.counters]) {
			const value = JSON.stringify([l.rule, l.limit]);
			if (l.rule && l.quota !== null && !own.has(value)) own.set(value, `${l.rule}/${l.limit}: now ${l.quota.toLocaleString('en')}`);
		}
		for (const { name } of next?.rules ?? []) others.set(JSON.stringify([name, '']), `${name}: all limits`);
	} catch { /* the action itself says what is wrong */ }
	if (mine !== select.asked) return;
	const options = (from) => [...from].map(([value, text]) => el('option', { value }, visible(text)));
	select.replaceChildren(...(own.size > 0 ? [el('optgroup', { label: 'applies to ' + visible(who) }, ...options(own))] : []),
		others.size > 0 ? el('optgroup', { label: 'rules' }, ...options(others)) : el('option', { value: '' }, 'no rule is known'));
	if ([...select.options].some((o) => o.value === chosen)) select.value = chosen;
}

export function startAct() {
	if (!byId('act')) return;
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
	document.addEventListener('click', ({ target }) => {
		const button = target.closest('[data-act], [data-offer]');
		if (button?.dataset.act) press(button);
		else if (button) offer(button.dataset.offer, button.dataset.who);
	});
	byId('ask-no').addEventListener('click', () => byId('ask').close('no'));
	try {
		if (by) by.value ||= sessionStorage.getItem(remembered) ?? '';
	} catch { /* the same */ }
}
