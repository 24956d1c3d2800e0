package history

import "strings"

// mostMerged bounds the refusals of one second that others can be added to.
const mostMerged = 20000

// mergeKey is what equal refusals have in common, besides their second.
type mergeKey struct {
	decision                         Decision
	cost                             int64
	status                           int
	prefix, key, user, limit, reason string
}

// pending are the rows of the audit log that wait for the next batch, the oldest first. The
// Writer's mutex guards it.
type pending struct {
	rows      []row // from head on
	head      int
	first     int64 // the number of rows[0] since the start
	decisions int64 // the sum of the rows' counts
	bytes     int64

	// merged are the numbers of the rows of refusals in one second. Rows before head are gone.
	second int64
	merged map[mergeKey]int64
}

// len is how many rows there are.
func (p *pending) len() int { return len(p.rows) - p.head }

// end is the number of the next row.
func (p *pending) end() int64 { return p.first + int64(len(p.rows)) }

// merge adds a refusal to the row of an equal one in its second, and reports whether there is one.
// Otherwise the caller appends a row, and calls remember.
func merge(p *pending, k *mergeKey, second int64) bool {
	if second != p.second {
		p.second = second
		p.merged = make(map[mergeKey]int64)
		return false
	}
	number, ok := p.merged[*k]
	if !ok || number < p.first+int64(p.head) {
		return false
	}
	p.rows[number-p.first].count++
	p.decisions++
	return true
}

// remember notes that the last row is that of k. The texts of k are those of a request, and the
// row has its own.
func remember(p *pending, k *mergeKey) {
	x := &p.rows[len(p.rows)-1]
	k.prefix = own(x.prefix, k.prefix)
	k.limit = own(x.limit, k.limit)
	k.reason = own(x.reason, k.reason)
	k.key = own(x.key, k.key)
	k.user = own(x.user, k.user)
	if len(p.merged) >= mostMerged {
		p.merged = make(map[mergeKey]int64) // most of their rows are gone
	}
	p.merged[*k] = p.end() - 1
}

// own is the text of the row if it equals that of the request, or a copy.
func own(ofRow, ofRequest string) string {
	if ofRow == ofRequest {
		return ofRow
	}
	return strings.Clone(ofRequest)
}

// appendRow makes room for a row, which the caller fills.
func appendRow(p *pending) *row {
	if p.head > 0 && len(p.rows) == cap(p.rows) && p.head*2 >= len(p.rows) {
		n := copy(p.rows, p.rows[p.head:])
		forgetRows(p.rows[n:])
		p.rows = p.rows[:n]
		p.first += int64(p.head)
		p.head = 0
	}
	p.rows = append(p.rows, row{})
	p.decisions++
	return &p.rows[len(p.rows)-1]
}

// forgetRows lets go of the texts of rows.
func forgetRows(rows []row) {
	for i := range rows {
		rows[i] = row{}
	}
}

// dropOldest removes the oldest row, and returns how many decisions it stands for.
func (p *pending) dropOldest() int64 {
	x := &p.rows[p.head]
	count := x.count
	p.decisions -= count
	p.bytes -= x.bytes
	p.rows[p.head] = row{}
	p.head++
	p.settle()
	return count
}

// take removes up to most rows of those before the number until, and returns them.
func (p *pending) take(most int, until int64) []row {
	n := p.len()
	if n > most {
		n = most
	}
	if before := until - p.first - int64(p.head); before < int64(n) {
		n = int(before)
	}
	if n <= 0 {
		return nil
	}
	from := p.rows[p.head : p.head+n]
	rows := make([]row, n)
	copy(rows, from)
	forgetRows(from)
	for i := range rows {
		p.decisions -= rows[i].count
		p.bytes -= rows[i].bytes
	}
	p.head += n
	p.settle()
	return rows
}

// settle begins at the front again when no row is left. Memory for many rows is given back.
func (p *pending) settle() {
	if p.head < len(p.rows) {
		return
	}
	p.first += int64(p.head)
	p.head = 0
	p.rows = p.rows[:0]
	if cap(p.rows) > 4*batchRows {
		p.rows = nil
	}
}

// before returns the number of the first row that is of this second, or end.
func (p *pending) before(second int64) int64 {
	for i := p.head; i < len(p.rows); i++ {
		if floorDiv(p.rows[i].micros, 1000000) == second {
			return p.first + int64(i)
		}
	}
	return p.end()
}

// floorDiv is a / b, rounded down; b is above 0.
func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}
