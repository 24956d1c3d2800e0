// Speaks with the page's server. All addresses are relative: the page may be mounted anywhere.

export const session = { write: false, who: null, token: '', version: '', database: '' };

// now is the time by the clock of the database, in milliseconds.
let ahead = 0;
export const now = () => Date.now() + ahead;
export const setNow = (time) => { ahead = Date.parse(time) - Date.now(); };

// Failure is an answer that is an error: its message is for people.
class Failure extends Error {
	constructor(status, answer) {
		super(answer?.error ?? `The server of this page answers ${status}.`);
		this.field = answer?.field;
	}
}

async function request(path, options) {
	let response;
	try {
		response = await fetch(path, { cache: 'no-store', ...options });
	} catch {
		throw new Failure(0, { error: 'The server of this page does not answer.' });
	}
	const answer = await response.json().catch(() => null);
	if (!response.ok || answer === null) throw new Failure(response.status, answer);
	return answer;
}

export const get = (path) => request(path);

export async function post(path, body) {
	const send = () => request(path, { method: 'POST', headers: { 'Content-Type': 'application/json', 'X-Pg-Ratelimit-Token': session.token }, body: JSON.stringify(body) });
	try {
		return await send();
	} catch (failure) {
		if (failure.field !== 'token') throw failure;
		await openSession(); // the server was restarted
		return send();
	}
}

export async function openSession() {
	Object.assign(session, await get('api/session'));
}

// listen calls take(section, value) for each event. It returns a function that ends it and
// returns null. EventSource
// connects again by itself, unless an answer is an error: then the state is asked for.
export function listen(sections, take, lost) {
	let source, timer, ended = false;
	const poll = async () => {
		try {
			const state = await get('api/state');
			for (const section of sections) if (section in state) take(section, state[section]);
		} catch (failure) {
			lost(failure);
		}
		if (!ended) timer = setTimeout(open, 3000);
	};
	const open = () => {
		source = new EventSource('api/events');
		for (const section of sections) source.addEventListener(section, (event) => take(section, JSON.parse(event.data)));
		source.onerror = () => {
			if (source.readyState === EventSource.CLOSED) poll();
			else lost(null);
		};
	};
	open();
	return () => {
		ended = true;
		source.close();
		clearTimeout(timer);
		return null;
	};
}
