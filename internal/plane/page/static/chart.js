// Lets the reader point at a minute of the lines.

import { byId, say } from './dom.js';

const chart = byId('chart'), panes = byId('panes'), minutes = 60;
let chosen = null; // the minute that the reader points to; null: the last one

const points = () => JSON.parse(panes.dataset.points ?? '[]');

// point shows the values of the minute.
export function point() {
	const all = points(), last = all.length - 1, at = Math.min(chosen ?? last, last);
	if (last < 0) return;
	const [time, ...rates] = all[at], [allowed, refused, failed] = rates.map((rate) => rate.replace('/s', ''));
	say(byId('chart-time'), chosen === null ? panes.dataset.time : 'at ' + time);
	panes.querySelectorAll('.pane').forEach((pane, i) => {
		say(pane.querySelector('.value'), rates[i]);
		pane.querySelector('.cursor').setAttribute('d', chosen === null ? '' : `M${60 * at} 0V100`);
	});
	chart.setAttribute('aria-valuemax', last);
	chart.setAttribute('aria-valuenow', at);
	chart.setAttribute('aria-valuetext', `${time}: ${allowed} allowed, ${refused} refused, ${failed} without a decision a second`);
}

function choose(minute) {
	chosen = minute;
	point();
}

function follow(event) {
	const box = panes.getBoundingClientRect();
	choose(Math.max(0, Math.round(((event.clientX - box.left) / box.width) * minutes)));
}

function press(event) {
	const last = points().length - 1, at = Math.min(chosen ?? last, last);
	const to = { ArrowLeft: at - 1, ArrowDown: at - 1, ArrowRight: at + 1, ArrowUp: at + 1, PageDown: at - 10, PageUp: at + 10, Home: 0, End: last + 1, Escape: last + 1 }[event.key];
	if (to === undefined || last < 0) return;
	event.preventDefault();
	choose(to > last ? null : Math.max(0, to));
}

export function startChart() {
	for (const name of ['pointermove', 'pointerdown']) chart.addEventListener(name, follow);
	for (const name of ['pointerleave', 'blur']) chart.addEventListener(name, () => choose(null));
	chart.addEventListener('keydown', press);
}
