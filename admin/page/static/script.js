'use strict'

// Each question has the milliseconds between two requests, the function that shows its answer, and the id of the element
// for its error. An answer is {time, rows}, or has an error. The lists add their questions.
const questions = {
	state: [500, showState],
	minutes: [3000, showMinutes, 'lines'],
	changes: [3000, showChanges, 'changes'],
	refused: [3000, showRefused, 'lists'],
}
const answers = {} // the last answer with rows, by question
const $ = (id) => document.getElementById(id)

// element creates an element with a class and content, and never parses text as HTML.
function element(name, kind, ...content) {
	const created = document.createElement(name)
	if (kind) created.className = kind
	created.append(...content.filter((c) => c !== null && c !== undefined).map((c) => (c instanceof Node ? c : visible(c))))
	return created
}

// visible replaces invisible characters, and characters that change the direction of text, with their codes.
function visible(text) {
	return String(text).replace(/[\u0000-\u001f\u007f-\u00a0\u00ad\u061c\u115f\u1160\u180e\u200b-\u200f\u2028-\u202f\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\ufff0-\uffff]/g,
		(c) => '\\u' + c.charCodeAt(0).toString(16).padStart(4, '0'))
}

const shown = new Map()

// fill replaces the content of an element. If the content is the same, fill does nothing, which keeps the focus.
function fill(id, ...content) {
	const nodes = content.flat()
	const text = nodes.map((n) => n.outerHTML ?? n).join('')
	if (shown.get(id) === text) return
	shown.set(id, text)
	$(id).replaceChildren(...nodes)
}

const number = (n) => Number(n).toLocaleString('en-US', { maximumFractionDigits: 6 })
const amount = (n, unit) => Number(n).toLocaleString('en-US', { minimumFractionDigits: unit === 'money' ? 2 : 0, maximumFractionDigits: 6 })
const ofUnit = (unit) => unit ? ' ' + unit.replaceAll('_', ' ') : ''
const clock = (time) => new Date(time).toISOString().slice(11, 19)
const none = (text) => element('p', 'none', text)

// when formats a time, with its day unless it is the day of the answer.
function when(time, now) {
	if (time === null || time === '-infinity') return ''
	if (time === 'infinity') return 'forever'
	const text = new Date(time).toISOString()
	return (text.slice(0, 10) === new Date(now).toISOString().slice(0, 10) ? '' : text.slice(0, 10) + ' ') + text.slice(11, 16)
}

// table creates a table. A column is a field of the rows, or a function from a row and the time of the answer to a cell or its
// content. A text can break after each slash. On a narrow screen, each cell of a row has a line with the name of its column.
function table(label, columns, rows, now) {
	const head = Object.keys(columns).map((name) => Object.assign(element('th', '', name), {scope: 'col'}))
	const body = rows.map((row) => element('tr', '', ...Object.entries(columns).map(([name, column]) => {
		let content = typeof column === 'string' ? row[column] ?? '' : column(row, now)
		if (typeof content === 'number') content = number(content)
		const parts = typeof content === 'string' ? content.split(/(?<=\/)/).flatMap((part, n) => n ? [element('wbr'), part] : part) : [content]
		const cell = content instanceof HTMLTableCellElement ? content : element('td', '', ...parts)
		cell.dataset.name = name
		return cell
	})))
	const created = element('table', 'folds', element('thead', '', element('tr', '', ...head)), element('tbody', '', ...body))
	created.setAttribute('aria-label', label)
	return created
}

const counts = {'Admitted': 'admitted', 'Refused': 'refused', 'Without a decision': 'undecided'} // columns of requests

// missing returns an element that explains why there are no rows, or null if there are rows.
function missing(answer, what, nothing) {
	if (answer.absent) return none(`This database has no ${what}.`)
	return answer.rows.length ? null : none(nothing)
}

const noTables = {state: 'stopped', summary: 'This database has no proxies: it lacks the tables, which pg-ratelimit migrate makes.'}

function showState(answer) {
	const [first, ...others] = answer.absent ? [noTables] : answer.rows
	$('banner').className = first.state
	document.title = `${first.state} – pg-ratelimit`
	fill('state', visible(first.summary))
	fill('state-more', others.map((row) => element('li', '', row.summary)))
	fill('fresh', `${clock(answer.time)} UTC`)
	document.body.classList.remove('old')
}

const sentence = (text) => text[0].toUpperCase() + text.slice(1)

// keptNodes returns the content of a section without the note of showAway.
const keptNodes = (id) => [...$(id).children].filter((child) => child.className !== 'away')

// showDown reports that there are no new answers, with the cause below, and keeps the last answers in gray. Sections then
// need no notes of their own. If the page was opened during the outage, it has answers of its server from before.
function showDown(text) {
	const last = answers.state ?? Object.values(answers).sort((a, b) => Date.parse(a.time) - Date.parse(b.time))[0]
	for (const [, , id] of Object.values(questions)) if (id) fill(id, keptNodes(id))
	const [summary, cause] = text.split(/(?<=the database does not answer): (.*)/)
	$('banner').className = 'down'
	document.title = 'down – pg-ratelimit'
	fill('state', visible(sentence(summary)))
	fill('state-more', cause ? element('li', '', sentence(cause)) : [], last ? element('li', '', `What is below is of ${clock(last.time)} UTC.`) : [])
	if (last) fill('fresh', `values of ${clock(last.time)} UTC`)
	document.body.classList.add('old')
}

// showAway reports in a section that there is no new answer, and keeps the last answer in gray. The other sections stay
// current, because the database of this section is another one, or is only slow.
function showAway(id, last, text) {
	if (last) last.away = true
	const note = element(id === 'changes' ? 'li' : 'p', 'away', sentence(text) +
		(last ? ` (what is below is of ${clock(last.time)} UTC)` : ''))
	fill(id, note, keptNodes(id))
}

const svg = (name, attributes, ...content) => {
	const created = document.createElementNS('http://www.w3.org/2000/svg', name)
	for (const [key, value] of Object.entries(attributes)) created.setAttribute(key, value)
	created.append(...content)
	return created
}

function showMinutes(answer) {
	const nothing = missing(answer, 'history', 'No request of this hour is recorded: none came, or history is off in the configurations of the proxies.')
	if (nothing) {
		fill('lines', nothing)
		fill('minutes', element('caption', 'none', 'None.'))
		return
	}
	const minute = 60000
	const last = Math.floor(Date.parse(answer.time) / minute) * minute // the current minute
	const at = new Map(answer.rows.map((row) => [Date.parse(row.time), row]))
	const marks = (answers.changes?.rows ?? []).map((c) => Math.min(60, (Date.parse(c.at) - last) / minute + 60)).filter((x) => x >= 0)
		.map((x) => `M${x.toFixed(2)} 0V48`).join('')
	const lines = Object.entries(counts).map(([title, name]) => {
		const counts = Array.from({length: 60}, (_, i) => at.get(last - (60 - i) * minute)).map((row) => row ? row[name] : 0)
		const most = Math.max(...counts)
		const path = counts.map((n, i) => `${i ? 'L' : 'M'}${i + 1} ${(47 - 44 * n / Math.max(most, 1)).toFixed(1)}`).join('')
		const sum = answer.rows.reduce((all, row) => all + row[name], 0)
		const graph = svg('svg', {viewBox: '0 0 60 48', preserveAspectRatio: 'none', 'aria-hidden': 'true'},
			svg('path', {class: 'marks', d: marks}), svg('path', {class: 'base', d: 'M0 47H60'}), svg('path', {class: 'path', d: path}))
		return element('div', 'line ' + name, element('p', '', element('span', '', title),
			element('span', 'sum', `${number(sum)} in 1 h` + (most ? `, at most ${number(most)} in a full minute` : ''))), graph)
	})
	const axis = element('div', 'axis', ...[60, 30, 0].map((m) => element('span', '', clock(last - m * minute).slice(0, 5))))
	axis.setAttribute('aria-hidden', 'true')
	fill('lines', lines, axis)
	if (answers.refused?.rows.length === 0 && !answers.refused.away) showRefused(answers.refused)
	fill('minutes', ...table('Requests in each minute', {'Minute': (row) => clock(row.time).slice(0, 5), ...counts}, answer.rows.slice().reverse()).children)
}

function showChanges(answer) {
	const nothing = missing(answer, 'policy', 'The policy did not change in this hour.')
	const lines = answer.rows.slice(0, 10).map((c) => element('li', '',
		`${clock(c.at).slice(0, 5)} ${c.kind} ${c.which}: ${c.what.join(', ')} `, element('span', 'note', `by ${c.by}`)))
	if (answer.rows.length > lines.length) lines.push(element('li', 'none', '… and more: pg-ratelimit changes'))
	fill('changes', nothing ? element('li', 'none', nothing.textContent) : lines)
	if (answers.minutes && !answers.minutes.away) showMinutes(answers.minutes)
}

// whyButton creates a button with a name. A click asks why the name was refused.
function whyButton(name) {
	const created = element('button', 'name', name)
	created.type = 'button'
	created.dataset.who = name
	return created
}

function showRefused(answer) {
	// The chart counts requests that the audit log gets later, or with its settings not at all.
	const counted = (answers.minutes?.rows ?? []).reduce((all, row) => all + row.refused, 0)
	const nothing = missing(answer, 'history', counted ? 'Not known: the audit log has no refusal of this hour yet, or its settings leave refusals out.' :
		'Nobody: no refusal of this hour is recorded.')
	const lists = {users: 'Users', keys: 'Keys of limits', addresses: 'Addresses', causes: 'By what'}
	fill('lists', nothing ?? Object.entries(lists).map(([list, title]) => {
		const rows = answer.rows.filter((row) => row.kind === list)
		if (!rows.length) return []
		return element('div', '', element('h3', '', title), element('ol', '', ...rows.map((row) => element('li', '',
			list === 'causes' ? element('span', '', row.name) :
				element('span', '', whyButton(row.name), row.prefix ? element('span', 'note', [' ', row.key_name ? row.key_name + ' ' : '', row.prefix].join('')) : null),
			element('span', 'number', number(row.requests))))))
	}).flat())
}

const money = (n) => n === null ? '' : amount(n, 'money')

function showMoney(answer) {
	const nothing = missing(answer, 'ledger', '')
	const all = answer.rows.find((row) => row.list === 'all' && row.name === null)
	if (nothing || !all) return fill('money-list', nothing ?? none('Nothing was used in this month or the one before.'))
	const currency = all.currency ?? ''
	const sums = [['Today', all.today], ['This month', all.this_month], ['The month before', all.month_before]].map(([title, n]) =>
		element('div', '', element('dt', '', title), element('dd', '', `${amount(n ?? 0, 'money')} ${currency}`)))
	const notes = [all.estimated && `This month has ${money(all.estimated)} ${currency} of estimates, because responses did not report their usage.`,
		all.corrected && `Corrections of this month have changed it by ${money(all.corrected)} ${currency}.`].filter(Boolean).map((text) => element('p', 'note', text))
	const unpriced = answer.rows.filter((row) => row.list === 'model' && row.requests && row.this_month === null)
	if (unpriced.length) notes.push(element('p', 'warn', `Models without a price, and their requests of this month: ${unpriced.map((row) =>
		`${row.others ? 'others' : row.name ?? 'unnamed'} (${number(row.requests)})`).join(', ')}.`))
	const lists = {organization: 'Organizations', team: 'Teams', person: 'Persons', model: 'Models'}
	fill('money-list', element('dl', '', ...sums), notes,
		element('div', 'costs', ...Object.entries(lists).flatMap(([list, title]) => {
			const rows = answer.rows.filter((row) => row.list === list)
			if (!rows.length) return []
			const period = list === 'model' ? 'month' : 'period'
			const figure = (field) => (row) => element('td', 'number', money(row[field]))
			return element('div', '', element('h3', '', title), table(title, {
				'Name': (row) => row.others ? element('td', 'none', `${number(row.others)} other`) : row.name ?? element('td', 'none', 'unknown'),
				'Today': figure('today'), [`This ${period}`]: figure('this_month'), [`${sentence(period)} before`]: figure('month_before'),
			}, rows))
		})))
}

// lists has the sections below the form: a heading, a note, the milliseconds between two requests, what a database without the
// tables lacks, the text without rows, and the columns. One has a function instead that shows its answer.
const lists = {
	proxies: {title: 'Proxies', interval: 1500, lacks: 'registry', none: 'None.', columns: {
		'Proxy': (p) => p.region ? `${p.node} (${p.region})` : p.node,
		'State': (p) => p.live ? (p.cannot ? element('td', 'bad', 'cannot decide') : element('td', 'good', 'running')) :
			p.ended ? element('td', 'note', 'stopped') : element('td', 'warn', 'silent'),
		'Policy': (p) => element('td', p.policy && p.late !== 0 ? 'warn' : '', !p.policy ? 'none' : !p.live || p.behind === null ? 'unknown' :
			p.behind === 0 ? 'newest' : p.late ? `${number(p.late)} behind` : 'about to change'),
		...counts, 'Version': 'version',
	}},
	near: {title: 'Above 80 % of a limit', interval: 5000, lacks: 'policy', none: 'Nobody.', columns: {
		'Key': (row) => element('td', '', whyButton(row.key), row.key_name && element('span', 'note', ' ' + row.key_name)),
		'Limit': (row) => `${row.rule}/${row.limit_name}`,
		'Used': (row) => `${amount(row.used, row.unit)}${row.held ? ` and ${amount(row.held, row.unit)} held` : ''} of ${amount(row.quota, row.unit)}${ofUnit(row.unit)}`,
		'Percent': (row) => `${row.percent} %`,
	}},
	bans: {title: 'Bans', interval: 5000, lacks: 'policy', none: 'None.', columns: {
		'Banned': (row) => `${row.kind} ${row.banned}`, 'Until': (row, now) => when(row.until, now), 'Reason': 'reason', 'By': 'banned_by',
	}},
	money: {title: 'What does it cost?', note: 'By the ledger of language models, in days and months of UTC.', interval: 10000, show: showMoney},
	corrections: {title: 'Corrections of prices', interval: 10000, lacks: 'ledger', none: 'None in this month or the one before.', columns: {
		'Made (UTC)': (row, now) => when(row.at, now), 'By': 'corrected_by', 'Reason': 'reason',
		'Model': (row) => row.model ?? 'unnamed', 'Corrects': (row) => new Date(row.month).toISOString().slice(0, 7),
		'Requests': 'requests', 'Difference': (row) => money(row.money),
	}},
	prices: {title: 'Prices', note: 'Of a million tokens, and of one search or request.', interval: 10000, lacks: 'policy', none: 'No model has a price.', columns: {
		'Model': 'model', 'Input': 'input', 'Output': 'output', 'Further prices': (row) => row.parts.join(', '),
		'Since (UTC)': (row, now) => when(row.since, now), 'Until': (row, now) => when(row.until, now),
	}},
	notices: {title: 'Notices of quotas', interval: 5000, lacks: 'ledger', none: 'None.', columns: {
		'At (UTC)': (row, now) => when(row.at, now), 'Key': 'key', 'Limit': (row) => `${row.rule}/${row.limit_name}`,
		'Percent': (row) => `${row.percent} %${row.void ? ', no longer' : ''}`,
		'Used': (row) => `${number(row.used)} of ${number(row.quota)} ${row.currency ?? ''}`,
	}},
}

for (const [name, {title, note, interval, lacks, none: nothing, columns, show}] of Object.entries(lists)) {
	const id = name + '-list'
	const section = element('section', '', element('h2', '', title), note && element('p', 'note', note), Object.assign(element('div'), {id}))
	document.querySelector('main').append(Object.assign(section, {id: name, ariaLabel: title}))
	questions[name] = [interval, show ?? ((answer) => {
		const left = answer.rows[0]?.total - answer.rows.length
		fill(id, missing(answer, lacks, nothing) ?? [table(title, columns, answer.rows, answer.time), ...left > 0 ? [none(`… and ${number(left)} more`)] : []])
	}), id]
}

let why = new AbortController() // aborts the last question

async function askWhy() {
	const who = $('why-who').value.trim()
	if (!who) return
	why.abort()
	why = new AbortController()
	const {signal} = why
	const at = $('why-at').value.trim()
	fill('why-said', 'The audit log is being read.')
	fill('why-rows')
	const answer = await ask('why?' + new URLSearchParams({who, at}), 25000, signal)
	if (signal.aborted) return
	if (!answer.rows) return fill('why-said', visible(answer.error))
	if (answer.absent) return fill('why-said', 'This database has no history.')
	fill('why-said', visible(answer.rows[0].summary))
	const rows = answer.rows.filter((row) => row.time)
	if (rows.length) fill('why-rows', table('Refusals', {
		'Time': (row) => clock(row.time), 'Request': (row) => `${row.method ?? ''} ${row.host ?? ''}${row.path ?? ''}`,
		'Outcome': (row) => row.requests > 1 ? `${row.outcome} × ${number(row.requests)}` : row.outcome,
		'By': (row) => row.model ? `no price of ${row.model}` : [row.prefix, row.limit_name].filter(Boolean).join('/') || (row.reason ?? '').replaceAll('_', ' '),
		'Quota': (row) => row.quota === null ? '' : `${amount(row.remaining ?? 0, row.unit)} of ${amount(row.quota, row.unit)}${ofUnit(row.unit)} left`,
		'Address': 'address', 'Proxy': (row) => row.requests > 1 ? `last: ${row.node}` : row.node,
	}, rows))
}

// ask requests an answer, and returns the answer or an object with the error.
async function ask(name, timeout, end = new AbortController().signal) {
	try {
		const response = await fetch('api/' + name, {signal: AbortSignal.any([end, AbortSignal.timeout(timeout)])})
		const answer = await response.json()
		return response.ok || answer.error ? answer : {error: `The server answers ${response.status}.`}
	} catch (error) {
		return {error: error.name === 'TimeoutError' ? `There is no answer for ${timeout / 1000} s.` : 'The server of this page does not answer.'}
	}
}

// repeat asks a question at its interval. While the database is down, only the question state is asked, because a
// browser has six connections, and the other questions would occupy all of them.
async function repeat(name, [interval, show, id]) {
	const down = document.body.classList.contains('old')
	if (!document.hidden && (name === 'state' || !down)) {
		const answer = await ask(name, 1400)
		if (answer.rows) {
			answers[name] = answer
			show(answer)
		} else if (name === 'state') {
			showDown(answer.error)
		} else if (answers.state && !document.body.classList.contains('old')) {
			showAway(id, answers[name], answer.error)
		}
	}
	setTimeout(repeat, interval, name, [interval, show, id])
}

$('why-form').addEventListener('submit', (event) => {
	event.preventDefault()
	askWhy()
})
document.addEventListener('click', (event) => {
	const who = event.target.dataset?.who
	if (!who) return
	$('why-who').value = who
	$('why-at').value = ''
	$('why').scrollIntoView()
	askWhy()
})
for (const [name, question] of Object.entries(questions)) repeat(name, question)
ask('session', 5000).then((answer) => fill('where', visible(answer.database ?? '')))
