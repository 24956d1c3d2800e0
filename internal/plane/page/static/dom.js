// Makes and keeps elements. Every value becomes text: nothing here reads HTML.

// el makes an element. Attributes whose value is null, undefined or false are left out; those that
// begin with "on" are listeners. Children are elements, texts, or lists of these.
export function el(name, attributes, ...children) {
	const node = name.startsWith('svg:') ? document.createElementNS('http://www.w3.org/2000/svg', name.slice(4)) : document.createElement(name);
	set(node, attributes);
	node.append(...children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false));
	return node;
}

export function set(node, attributes) {
	for (const [name, value] of Object.entries(attributes ?? {})) {
		if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
		else if (value === null || value === undefined || value === false) node.removeAttribute(name);
		else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value === true ? '' : value);
	}
	return node;
}

export const byId = (id) => document.getElementById(id);

// say changes a text only if it is another one, so that screen readers do not repeat it.
export function say(node, text) {
	if (node.textContent !== text) node.textContent = text;
}

// list makes the children of a node those of some items, and keeps the elements of those that it
// had, so that the focus stays where it is. make returns an element, and update fills it.
export function list(parent, items, keyOf, make, update) {
	const had = parent.kept ?? new Map();
	const kept = new Map();
	items.forEach((item, i) => {
		let key = keyOf(item);
		while (kept.has(key)) key += ' ';
		const node = had.get(key) ?? make(item);
		kept.set(key, node);
		update(node, item);
		if (parent.children[i] !== node) parent.insertBefore(node, parent.children[i] ?? null);
	});
	while (parent.children.length > items.length) parent.lastElementChild.remove();
	parent.kept = kept;
}

// visible shows what would be invisible, or would change the order of the letters around it, and the
// beginning of what is too long.
export function visible(text, longest = 300) {
	const all = String(text ?? '');
	return (all.length > longest ? all.slice(0, longest) + '…' : all).replace(/[\u0000-\u001f\u007f-\u00a0\u00ad\u061c\u115f\u1160\u180e\u200b-\u200f\u2028-\u202f\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\ufff0-\uffff]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g,
		(c) => '\\u' + c.codePointAt(0).toString(16).padStart(4, '0'));
}

// bar sets the length of a bar in a row. The CSS reads the property.
export function bar(node, share) {
	node.style.setProperty('--share', Math.max(0, Math.min(1, share || 0)).toFixed(4));
}
