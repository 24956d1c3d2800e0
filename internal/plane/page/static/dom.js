// Fetches the page, and makes this page like another one. All addresses are relative: the page may be
// mounted anywhere.

export const byId = (id) => document.getElementById(id);

// say changes a text only if it is another one, so that screen readers do not repeat it.
export function say(node, text) {
	if (node.textContent !== text) node.textContent = text;
}

// el makes an element. Texts are its children as text: nothing here reads HTML.
export function el(name, attributes, ...children) {
	const node = document.createElement(name);
	for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
	node.append(...children);
	return node;
}

// morph makes a node like another one. What both have stays, so that the focus stays where it is.
function morph(node, like) {
	if (!(node instanceof Element)) return say(node, like.textContent);
	for (const { name } of [...node.attributes]) if (name !== 'open' && !like.hasAttribute(name)) node.removeAttribute(name);
	for (const { name, value } of like.attributes) if (node.getAttribute(name) !== value) node.setAttribute(name, value);
	[...like.childNodes].forEach((child, i) => {
		const mine = node.childNodes[i];
		if (mine?.nodeName === child.nodeName) morph(mine, child);
		else if (mine) mine.replaceWith(document.importNode(child, true));
		else node.append(document.importNode(child, true));
	});
	while (node.childNodes.length > like.childNodes.length) node.lastChild.remove();
}

// show makes an element as it is in another page.
export const show = (id, page) => morph(byId(id), page.getElementById(id));

async function request(path, options) {
	try {
		return await fetch(path, { cache: 'no-store', ...options });
	} catch {
		throw new Error('The server of this page does not answer.');
	}
}

// load is another page.
export async function load(path, options) {
	const response = await request(path, options);
	if (!response.ok) throw new Error(`The server of this page answers ${response.status}.`);
	return new DOMParser().parseFromString(await response.text(), 'text/html');
}
