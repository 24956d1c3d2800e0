// Writes numbers and times for people. Times are UTC, as in the log, in the commands, and in what
// the server says.

const whole = new Intl.NumberFormat('en', { maximumFractionDigits: 0 });
const one = new Intl.NumberFormat('en', { maximumFractionDigits: 1 });

export const none = '–';

const known = (n) => n !== null && n !== undefined;

export const count = (n) => (known(n) ? whole.format(n) : none);

// rate is a number a second: 0.2, 12, 12,345.
export function rate(n) {
	if (!known(n)) return none;
	return n > 0 && n < 0.1 ? '< 0.1' : n < 10 ? one.format(n) : whole.format(n);
}

export const percent = (n) => (known(n) ? one.format(Math.floor(n * 10) / 10) + ' %' : none);

// duration is a time in seconds, in its two largest units.
export function duration(seconds) {
	let left = Math.max(0, Math.round(seconds));
	const parts = [];
	for (const [unit, size] of [['d', 86400], ['h', 3600], ['min', 60], ['s', 1]]) {
		const n = Math.floor(left / size);
		left -= n * size;
		if (n > 0) parts.push(n + ' ' + unit);
		else if (parts.length > 0) break;
		if (parts.length === 2) break;
	}
	return parts.join(' ') || '0 s';
}

// clock is 14:05:09, and with the date if the day is not that of now.
export function clock(time, now, seconds = true) {
	if (!known(time)) return none;
	const text = new Date(time).toISOString();
	const day = text.slice(0, 10) === new Date(now).toISOString().slice(0, 10) ? '' : text.slice(0, 10) + ' ';
	return day + text.slice(11, seconds ? 19 : 16);
}

// until is "15:00 (in 42 min)".
export const until = (time, now) => clock(time, now, false) + ' (in ' + duration((Date.parse(time) - now) / 1000) + ')';

export const plural = (n, word) => count(n) + ' ' + word + (n === 1 ? '' : 's');

// joined joins the changes that one role made within some seconds, which come newest first: a file with a policy makes many.
export function joined(changes) {
	const groups = [];
	for (const c of changes) {
		const group = groups[groups.length - 1];
		if (group && group[0].by === c.by && Date.parse(group[group.length - 1].at) - Date.parse(c.at) < 5000) group.push(c);
		else groups.push([c]);
	}
	return groups;
}

// banText is a ban in force.
export const banText = (b, now) => `${b.kind} ${b.banned}, ${b.until === null ? 'for ever' : 'until ' + until(b.until, now)}, by ${b.banned_by}${b.reason ? ': ' + b.reason : ''}`;
