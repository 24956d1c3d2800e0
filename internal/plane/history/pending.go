package history

import (
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
)

// mostMerged bounds the refusals of one second to which equal ones can be added.
const mostMerged = 20000

// mostReused is the number of rows for which memory is kept while no row waits.
const mostReused = 4 * batchRows

// mergeKey identifies equal refusals within a second.
type mergeKey struct {
	outcome                         OutcomeKind
	cost, keyID                     int64
	status                          int
	prefix, key, user, tier, reason string
}

// pending holds the rows of the audit log that wait for the next batch, oldest first. The Writer's
// mutex guards it.
type pending struct {
	rows      []auditRow
	first     int64 // the number of rows[0] since the start
	decisions int64 // the sum of the rows' counts
	bytes     int64

	// merged are the numbers of the rows of refusals in one second. Rows before first are gone.
	second int64
	merged map[mergeKey]int64
}

// end returns the number of the next row.
func (p *pending) end() int64 { return p.first + int64(len(p.rows)) }

// merge sets k to the key of a refusal, adds the refusal to the row of an equal one in the same second, and
// reports whether there is such a row. If not, the caller may append a row and call remember. The caller
// holds the mutex.
func merge(w *Writer, r *Record, second int64, k *mergeKey) bool {
	k.outcome = r.Outcome
	k.cost = r.Cost
	k.keyID = r.KeyID
	k.status = r.Status
	k.prefix = r.Prefix
	k.key = r.Key
	k.user = r.User
	k.tier = r.Tier
	k.reason = r.Reason
	p := &w.pending
	if second != p.second {
		p.second = second
		p.merged = make(map[mergeKey]int64)
		return false
	}
	number, ok := p.merged[*k]
	if !ok || number < p.first {
		return false
	}
	p.rows[number-p.first].numbers[auditCount]++
	p.decisions++
	w.stats.Recorded++
	return true
}

// remember adds k, the key of the last row, to merged. It replaces the texts of k, which belong to the
// request, by copies that the row owns.
func remember(p *pending, k *mergeKey) {
	x := &p.rows[len(p.rows)-1]
	k.prefix = own(x.texts[auditPrefix], k.prefix)
	k.reason = own(x.texts[auditReason], k.reason)
	k.key = own(x.texts[auditKey], k.key)
	k.user = own(x.texts[auditUser], k.user)
	k.tier = own(x.texts[auditTier], k.tier)
	if len(p.merged) >= mostMerged {
		p.merged = make(map[mergeKey]int64) // most of their rows are gone
	}
	p.merged[*k] = p.end() - 1
}

// own returns the text of the row if it equals that of the request, or else a copy.
func own(ofRow, ofRequest string) string {
	if ofRow == ofRequest {
		return ofRow
	}
	return strings.Clone(ofRequest)
}

// appendRow appends the row of a record.
func appendRow(p *pending, r *Record, micros int64, weight string, mode settings.AddressMode) {
	p.rows = append(p.rows, auditRow{})
	x := &p.rows[len(p.rows)-1]
	x.fill(r, micros, weight, mode)
	p.decisions++
	p.bytes += x.bytes
}

// take removes and returns the oldest n rows.
func (p *pending) take(n int) []auditRow {
	rows := append([]auditRow(nil), p.rows[:n]...)
	p.remove(n)
	return rows
}

// remove removes the oldest n rows. If few are left, it moves them to the front, so that their memory
// is reused.
func (p *pending) remove(n int) {
	for i := 0; i < n; i++ {
		p.decisions -= p.rows[i].numbers[auditCount]
		p.bytes -= p.rows[i].bytes
		p.rows[i] = auditRow{} // release the texts
	}
	p.first += int64(n)
	left := p.rows[n:]
	if len(left) > n {
		p.rows = left
		return
	}
	copy(p.rows, left)
	for i := n; i < len(p.rows); i++ {
		p.rows[i] = auditRow{}
	}
	p.rows = p.rows[:len(left)]
	if len(left) == 0 && cap(p.rows) > mostReused {
		p.rows = nil
	}
}

// before returns the number of the first row of the given second, or end.
func (p *pending) before(second int64) int64 {
	for i := range p.rows {
		if p.rows[i].numbers[auditTime]/1000000 == second {
			return p.first + int64(i)
		}
	}
	return p.end()
}
