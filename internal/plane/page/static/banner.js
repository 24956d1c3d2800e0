// Shows the state of the limits, to be read at one look.

import { el, byId, list, say, set, visible } from './dom.js';
import { clock } from './text.js';
import { now } from './server.js';

// show fills the banner. old is the time of the values, if they are not of now.
function show(level, mode, headline, text, notes, figures, old) {
	set(byId('banner'), { 'data-state': level });
	say(byId('state'), visible(headline));
	say(byId('state-why'), visible(text));
	document.title = mode + ' – pg-ratelimit';
	set(byId('menu-state'), { 'data-state': level });
	say(byId('menu-state'), old === null ? mode : `${mode}, values of ${old}`);
	list(byId('state-more'), notes, (note) => note.replace(/\d+/g, ''), () => el('li', {}), (node, note) => say(node, visible(note)));
	list(byId('figures'), figures, (f) => f.name, (f) => el('div', {}, el('dt', {}, f.name), el('dd', {})), (node, f) => {
		set(node, { class: f.kind });
		say(node.lastElementChild, visible(f.text));
	});
}

// showBanner shows the section banner of the server. known is whether the database has ever answered.
export function showBanner(b, known) {
	const old = b.database.up || !known ? null : clock(b.database.since ?? b.at, now());
	show(b.level, b.headline.replace(/:.*/, ''), b.headline, b.text, b.notes, b.figures, old);
}

// showSilence says that nothing is known since a time. gone is whether the server of this page has had time to answer.
export function showSilence(b, time, gone) {
	const mode = gone ? 'No connection' : 'Connecting';
	show('wait', mode, mode, `No news from this page’s server since ${time} UTC: the state is not known. What is below is of that time.`, [],
		b.figures.map((f) => ({ name: f.name, text: 'not known', kind: '' })), time);
}
