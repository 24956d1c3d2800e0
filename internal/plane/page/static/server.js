// Speaks with the page's server. All addresses are relative: the page may be mounted anywhere.

// first is what the server has put into the page.
export const first = JSON.parse(document.getElementById('first').textContent);
export const session = first.session;

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

export const get = (path, timeout = 60000) => request(path, { signal: AbortSignal.timeout(timeout) });
export const post = (path, body) => request(path, { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(body) });
