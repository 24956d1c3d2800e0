// Shows the proxies, and the limits of their configurations.

import { el, byId, list, say, set, visible } from './dom.js';
import { clock, count, duration, milliseconds, none, rate } from './text.js';
import { now } from './server.js';

const cells = [
	['State', (p) => (p.live ? 'live' : 'gone'), (p) => (p.live ? 'good' : 'bad')],
	['Proxy', (p) => p.node + (p.region ? ' (' + p.region + ')' : '')],
	['Policy', (p) => (!p.policy ? 'none' : p.behind === null ? 'unknown' : p.behind === 0 ? 'newest' : p.behind + ' behind'), (p) => (p.policy && p.behind !== 0 ? 'warn' : '')],
	['Version', (p) => p.version ?? none],
	['Allowed', (p) => (p.now ? rate(p.now.allowed) + '/s' : none)],
	['Refused', (p) => (p.now ? rate(p.now.refused) + '/s' : none)],
	['Wait, p99', (p) => milliseconds(p.p99_ms)],
	['Waiting', (p) => count(p.waiting)],
	['In flight', (p) => count(p.in_flight)],
	['Leases', (p) => (p.leases === null ? none : p.leases === 0 ? '0' : `${count(p.leases)} (${count(p.leased_units)} units)`)],
];

function lacks(p) {
	const all = [];
	if (p.failing === 'open') all.push(['bad', 'Failing open: requests without a decision pass.']);
	if (p.failing === 'closed') all.push(['bad', 'Failing closed: requests without a decision are refused.']);
	if (p.failing === 'local') all.push(['bad', `Limits itself since ${clock(p.local_since, now())}, at its share of each limit: the database makes no decisions.`]);
	else if (p.local_until) all.push(['', `Has limited itself from ${clock(p.local_from, now())} to ${clock(p.local_until, now())}.`]);
	if (!p.live) all.push(['bad', `Gone for ${duration(p.seconds_ago)}.`]);
	const errors = Object.entries(p.errors ?? {}).filter(([, n]) => n > 0);
	if (errors.length > 0) all.push(['warn', 'Errors of the database: ' + errors.map(([name, n]) => `${name} × ${count(n)}`).join(', ') + '.']);
	for (const text of [...p.lacks, ...p.problems]) all.push(['warn', text]);
	return all;
}

export function showProxies(proxies) {
	byId('proxies-none').hidden = proxies.length > 0;
	list(byId('proxies-list'), proxies, (p) => p.node, () => el('li', {}, el('dl', { class: 'line' }, cells.map(([name]) => el('div', {}, el('dt', {}, name), el('dd', {})))), el('ul', {})), (node, p) => {
		const [line, missing] = node.children;
		cells.forEach(([, value, kind], i) => {
			say(line.children[i].lastElementChild, visible(value(p)));
			set(line.children[i], { class: kind?.(p) ?? '' });
		});
		list(missing, lacks(p), ([, text]) => text.replace(/\d+/g, ''), () => el('li', {}), (item, [kind, text]) => {
			say(item, visible(text));
			set(item, { class: kind });
		});
	});
}

export function showLimits(limits) {
	byId('limits-box').hidden = limits.length === 0;
	say(byId('limits-count'), `Limits of configurations (${count(limits.length)})`);
	list(byId('limits-list'), limits, (l) => [l.prefix, l.key, l.text, ...l.nodes].join(' '), () => el('li', {}), (node, l) => {
		const more = [l.algorithm, l.mode, 'on_error ' + l.on_error];
		if (l.settle) more.push('settle ' + l.settle);
		if (l.wait_seconds) more.push('requests wait up to ' + duration(l.wait_seconds));
		const running = l.in_flight === null || l.in_flight === undefined ? '' : `; ${count(l.in_flight)} in flight now, of all keys`;
		say(node, visible(`${l.prefix}: ${l.text} for each ${l.key}, ${more.join(', ')}${running}; in ${l.nodes.join(', ')}`));
	});
}
