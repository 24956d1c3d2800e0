// Asks why somebody was refused, and shows the answer in place.

import { byId, load, say, show } from './dom.js';

const form = byId('why-form');
let asked = 0;

async function answer() {
	const mine = ++asked;
	byId('why-answer').setAttribute('aria-busy', 'true');
	try {
		const page = await load('./', { method: 'POST', body: new URLSearchParams(new FormData(form)) });
		if (mine === asked) for (const id of ['why-error', 'why-said', 'why-answer']) show(id, page);
	} catch (failure) {
		if (mine !== asked) return;
		byId('why-said').replaceChildren();
		byId('why-answer').replaceChildren();
		say(byId('why-error'), failure.message);
	}
	if (mine === asked) byId('why-answer').removeAttribute('aria-busy');
}

export function startWhy() {
	form.addEventListener('submit', (event) => {
		event.preventDefault();
		if (event.submitter?.name === 'who') { // a name in a list
			form.elements.namedItem('why-who').value = event.submitter.value;
			byId('why-at').value = '';
			byId('why').scrollIntoView();
			byId('why-who').focus({ preventScroll: true });
		}
		answer();
	});
}
