// Draws what was allowed, what was refused and what had no decision a second, each on a scale of its own: few refusals
// stay visible beside many requests. Changes of the policy are marks over all of them.

import { el, set, say, list, byId, visible } from './dom.js';
import { rate, clock, count, joined } from './text.js';
import { now } from './server.js';

const hour = 3600;
const height = 56;
const series = ['allowed', 'refused', 'failed'];

let data = { points: [], marks: [], outages: [], end: 0, sums: null }; // times are in seconds since 1970
let chosen = null; // the time that the reader points to; null: now
let panes, axis;

const chart = byId('chart');

// scale is the next larger of 1, 2, 5, 10, 20 …
function scale(most) {
	const power = 10 ** Math.floor(Math.log10(Math.max(most, 1)));
	return [1, 2, 5, 10].find((step) => step * power >= most) * power;
}

// line is the path of a column of points, and the area below it.
function line(points, column, x, y) {
	const path = points.map((p, i) => (i > 0 ? 'L' : 'M') + `${x(p[0])} ${y(p[column])}`).join('');
	return { path, area: `${path}L${x(points[points.length - 1][0])} ${height}L${x(points[0][0])} ${height}Z` };
}

function nearest(time) {
	let best = null;
	for (const p of data.points) if (best === null || Math.abs(p[0] - time) < Math.abs(best[0] - time)) best = p;
	return best;
}

// draw draws all of it anew: an hour has a few hundred points.
function draw() {
	const width = axis.clientWidth, from = data.end - hour;
	if (width === 0) return;
	const x = (time) => Math.round(((time - from) / hour) * width * 10) / 10;
	const points = data.points.filter((p) => p[0] >= from);
	const point = chosen === null ? points[points.length - 1] : nearest(chosen);
	panes.forEach((pane, i) => {
		const most = Math.max(0, ...points.map((p) => p[i + 1]));
		const top = scale(most);
		const y = (value) => Math.round((height - 1 - (value / top) * (height - 4)) * 10) / 10;
		const { path, area } = most > 0 ? line(points, i + 1, x, y) : { path: '', area: '' };
		set(pane.svg, { viewBox: `0 0 ${width} ${height}` });
		set(pane.area, { d: area });
		set(pane.path, { d: path });
		set(pane.base, { d: `M0 ${height - 0.5}H${width}` });
		set(pane.outages, { d: data.outages.map((o) => `M${x(Math.max(o.from, from))} 0H${x(o.until)}V${height}H${x(Math.max(o.from, from))}Z`).join('') });
		set(pane.marks, { d: data.marks.map((m) => `M${x(m.time)} 0V${height}`).join('') });
		set(pane.cursor, { d: chosen !== null && point ? `M${x(point[0])} 0V${height}` : '' });
		say(pane.value, rate(point?.[i + 1]) + '/s');
		const sum = data.sums?.[series[i]];
		say(pane.sum, sum > 0 ? `${count(sum)} in 1 h` : sum === 0 ? 'none in 1 h' : '');
		say(pane.most, sum > 0 ? `, at most ${rate(most)}/s` : '');
	});
	const ticks = [];
	const step = width < 500 ? 900 : 600;
	for (let t = Math.ceil(from / step) * step; data.end > 0 && t <= data.end; t += step) {
		if (x(t) > 16 && x(t) < width - 16) ticks.push(el('svg:text', { x: x(t), y: 13, 'text-anchor': 'middle' }, clock(t * 1000, t * 1000, false)));
	}
	set(axis, { viewBox: `0 0 ${width} 34` });
	let free = -Infinity; // where a flag has room beside the one before
	const flags = data.marks.filter((m) => x(m.time) >= free && (free = x(m.time) + 18));
	axis.replaceChildren(...ticks, ...flags.map((m) => el('svg:g', { class: 'flag', transform: `translate(${Math.min(Math.max(x(m.time), 9), width - 9)} 25)` },
		el('svg:circle', { r: 8 }), el('svg:text', { y: 3.5, 'text-anchor': 'middle' }, m.number))));
	say(byId('chart-time'), point ? (chosen === null ? 'last full minute, ' : 'at ') + clock(point[0] * 1000, now(), false) : 'not known yet');
	set(chart, { 'aria-valuemin': Math.round(from), 'aria-valuemax': Math.round(data.end), 'aria-valuenow': Math.round(point ? point[0] : data.end),
		'aria-valuetext': point ? `${clock(point[0] * 1000, now(), false)}: ${rate(point[1])} allowed, ${rate(point[2])} refused, ${rate(point[3])} without a decision a second` : 'not known yet' });
}

function point(event) {
	const box = axis.getBoundingClientRect();
	chosen = data.end - hour + ((event.clientX - box.left) / box.width) * hour;
	draw();
}

function key(event) {
	const times = data.points.map((p) => p[0]);
	if (times.length === 0) return;
	const at = chosen === null ? times.length - 1 : times.indexOf(nearest(chosen)[0]);
	const to = { ArrowLeft: at - 1, ArrowDown: at - 1, ArrowRight: at + 1, ArrowUp: at + 1, PageDown: at - 10, PageUp: at + 10, Home: 0, End: times.length, Escape: times.length }[event.key];
	if (to === undefined) return;
	event.preventDefault();
	chosen = to >= times.length ? null : times[Math.max(0, to)];
	draw();
}

export function startChart() {
	panes = series.map((name) => {
		const box = chart.querySelector('.' + name);
		const made = { value: box.querySelector('.value'), sum: box.querySelector('.sum'), most: box.querySelector('.most'), svg: box.querySelector('svg') };
		for (const part of ['outages', 'area', 'marks', 'base', 'path', 'cursor']) made.svg.append(made[part] = el('svg:path', { class: part }));
		return made;
	});
	axis = chart.querySelector('.axis');
	new ResizeObserver(draw).observe(axis);
	chart.addEventListener('pointermove', point);
	chart.addEventListener('pointerdown', point);
	chart.addEventListener('pointerleave', () => { chosen = null; draw(); });
	chart.addEventListener('blur', () => { chosen = null; draw(); });
	chart.addEventListener('keydown', key);
}

// showTraffic shows the section traffic of the server, and the changes of the policy in its time.
export function showTraffic(t, changes) {
	const seconds = (time) => Date.parse(time) / 1000, minute = 60;
	const from = seconds(t.from), end = from + hour;
	const counts = new Map(t.minutes.map((m) => [seconds(m.time), m]));
	// The last minute is under way: its beginning is no average of a minute.
	const points = [];
	for (let time = from; time + minute <= seconds(t.until); time += minute) points.push([time, ...series.map((name) => (counts.get(time)?.[name] ?? 0) / minute)]);
	const sums = Object.fromEntries(series.map((name) => [name, t.minutes.reduce((sum, m) => sum + m[name], 0)]));
	const marks = joined(changes.filter((c) => seconds(c.at) >= from)).reverse().map((group, i) => {
		const first = group[group.length - 1];
		return { ...first, time: seconds(first.at), more: group.length - 1, number: i + 1 };
	});
	const outages = t.outages.map((o) => ({ ...o, from: seconds(o.from), until: Math.min(seconds(o.until), end) }));
	data = { points, marks, outages, end, sums };
	draw();
	const rows = [...marks.map((m) => ({ ...m, by: 'by ' + m.by, text: visible(m.text) + (m.more > 0 ? `, and ${count(m.more)} more` : '') })),
		...outages.map((o) => ({ number: '!', kind: 'outage', seq: 'outage ' + o.from, time: o.from, at: o.from * 1000, text: 'Outage: ' + o.text, by: '' }))].sort((a, b) => b.time - a.time);
	byId('changes-none').hidden = rows.length > 0;
	list(byId('changes'), rows, (m) => String(m.seq), () => el('li', {}, el('span', { class: 'flag' }), el('time', {}), el('span', { class: 'what' }), el('span', { class: 'by' })), (node, m) => {
		set(node, { class: m.kind === 'outage' && 'outage' });
		[m.number, clock(m.at, now()), visible(m.text), visible(m.by)].forEach((text, i) => say(node.children[i], String(text)));
	});
}
