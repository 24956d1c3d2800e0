// Chooses since when the lists count.

import { byId, el, load, say, show } from './dom.js';

// live is the period that the page has by itself.
export const live = '1h';
export let chosen = live;
let asked = 0;
let again = 0; // the timer of the next look at a period

const period = byId('since'), time = byId('since-time');

// offer leaves the choice as it is among new options.
export function offer() {
	const text = period.value === 'time' ? 'time' : chosen;
	if (![...period.options].some((o) => o.value === text)) period.append(el('option', { value: text }, 'as chosen'));
	period.value = text;
}

// past shows a period, and looks at it again later: a long one costs the database time.
async function past() {
	const mine = ++asked, began = Date.now();
	clearTimeout(again);
	if (!document.hidden) {
		byId('most').setAttribute('aria-busy', 'true');
		try {
			const page = await load('?since=' + encodeURIComponent(chosen));
			if (mine === asked) show('most-lists', page);
		} catch (failure) {
			if (mine === asked) say(byId('most-note'), failure.message);
		}
		if (mine !== asked) return;
		byId('most').removeAttribute('aria-busy');
	}
	again = setTimeout(past, Math.max(30000, 20 * (Date.now() - began)));
}

// last is the last time that it was this hour and minute.
function last(clock) {
	const [hour, minute] = clock.split(':'), now = Date.parse(byId('banner').dataset.at);
	const at = new Date(now).setUTCHours(hour, minute, 0, 0);
	return new Date(at > now ? at - 86400000 : at).toISOString();
}

function choose() {
	time.parentElement.hidden = period.value !== 'time';
	if (period.value === 'time' && time.value === '') return time.focus();
	chosen = period.value === 'time' ? last(time.value) : period.value;
	asked++;
	clearTimeout(again);
	if (chosen !== live) past();
}

export function startSince() {
	chosen = period.value;
	period.addEventListener('change', choose);
	time.addEventListener('change', choose);
	byId('since-form').addEventListener('submit', (event) => event.preventDefault());
}
