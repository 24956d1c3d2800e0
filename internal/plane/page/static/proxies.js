// Shows the proxies, and the limits of their configurations.

import { el, byId, list, say, set, visible } from './dom.js';
import { count } from './text.js';

export function showProxies(proxies) {
	byId('proxies-none').hidden = proxies.length > 0;
	const table = byId('proxies-list');
	table.parentElement.hidden = proxies.length === 0;
	if (proxies.length === 0) return;
	list(table.tHead.rows[0], proxies[0].cells, (c) => c.name, (c) => el('th', { scope: 'col' }, c.name), () => {});
	for (const body of [...table.tBodies]) if (!body.mine) body.remove(); // those of the server
	list(table, [null, ...proxies], (p) => (p === null ? ' ' : p.node), (p) => (p === null ? table.tHead : Object.assign(el('tbody', {}, el('tr', {})), { mine: true })), (body, p) => {
		if (p === null) return;
		list(body.rows[0], p.cells, (c) => c.name, (c) => el('td', { 'data-name': c.name }), (cell, c) => {
			say(cell, visible(c.text));
			set(cell, { class: c.kind });
		});
		list(body, [null, ...p.remarks], (r) => (r === null ? ' ' : r.text.replace(/\d+/g, '')), (r) => (r === null ? body.rows[0] : el('tr', { class: 'remark' }, el('td', { colspan: p.cells.length }))), (row, r) => {
			if (r === null) return;
			say(row.cells[0], visible(r.text));
			set(row.cells[0], { class: r.kind });
		});
	});
}

export function showLimits(limits) {
	byId('limits-box').hidden = limits.length === 0;
	say(byId('limits-count'), `Limits of configurations (${count(limits.length)})`);
	list(byId('limits-list'), limits, (l) => [l.prefix, l.key, l.text, ...l.nodes].join(' '), () => el('li', {}), (node, l) => say(node, visible(l.line)));
}
