package history

import (
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/core/outcome"
)

// maxMerged bounds the rows of one second into which equal refusals can merge.
const maxMerged = 20000

// mergeKey has the values that are equal in all refusals of one row. The status differs for a shadow.
type mergeKey struct {
	outcome                         outcome.Kind
	cost, keyID                     int64
	status                          int
	prefix, key, user, tier, reason string
	model                           string
}

// pending holds the rows of the audit log that wait for the next parcel, oldest first. Rows are numbered
// since the start of the Writer. The Writer's mutex guards pending.
type pending struct {
	rows        []tableRow
	firstNumber int64 // the number of rows[0]

	// merged maps the refusals of second to the numbers of their rows. Rows with numbers below firstNumber
	// were removed.
	second int64
	merged map[mergeKey]int64
}

// end returns the number of the next row.
func (p *pending) end() int64 { return p.firstNumber + int64(len(p.rows)) }

// merge sets k to the key of a refusal, and counts the refusal in the row of an equal refusal in the same
// second. Without such a row, merge returns false: the caller may then append a row for the refusal and call
// addMerged with k. The caller holds the mutex.
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
	k.model = r.Model
	p := &w.pending
	if second != p.second {
		p.second = second
		p.merged = make(map[mergeKey]int64)
		return false
	}
	number, ok := p.merged[*k]
	if !ok || number < p.firstNumber {
		return false
	}
	p.rows[number-p.firstNumber].numbers[auditCount]++
	w.size.records++
	return true
}

// addMerged adds k, the key of the last row, to merged. The texts of k belong to the request, so addMerged
// replaces each by the text of the row if it is equal, or else by a copy.
func addMerged(p *pending, k *mergeKey) {
	row := &p.rows[len(p.rows)-1]
	k.prefix = shareText(row.texts[auditPrefix], k.prefix)
	k.reason = shareText(row.texts[auditReason], k.reason)
	k.model = shareText(row.texts[auditModel], k.model)
	k.key = shareText(row.texts[auditKey], k.key)
	k.user = shareText(row.texts[auditUser], k.user)
	k.tier = shareText(row.texts[auditTier], k.tier)
	if len(p.merged) >= maxMerged {
		p.merged = make(map[mergeKey]int64) // to bound the memory; later refusals start new rows
	}
	p.merged[*k] = p.end() - 1
}

// shareText returns rowText if the texts are equal, else a copy of requestText.
func shareText(rowText, requestText string) string {
	if rowText == requestText {
		return rowText
	}
	return strings.Clone(requestText)
}

// removeOldest removes and returns the oldest n rows.
func (p *pending) removeOldest(n int) []tableRow {
	rows := p.rows[:n:n]
	p.rows = p.rows[n:]
	p.firstNumber += int64(n)
	return rows
}

// auditSize is the size of rows of the audit log.
type auditSize struct {
	rows    int
	records int64 // in the rows, since equal refusals share one
	bytes   int64 // of the texts of the rows
}

// release subtracts rows of the audit log, which are written or dropped, from those in memory. It returns the
// number of their records. The caller holds the mutex.
func (w *Writer) release(rows []tableRow) int64 {
	records := sumRecords(rows)
	w.size.records -= records
	w.size.rows -= len(rows)
	for i := range rows {
		w.size.bytes -= rows[i].bytes
	}
	return records
}

// firstOf returns the number of the first row of a second, or end() if the second has no row.
func (p *pending) firstOf(second int64) int64 {
	for i := range p.rows {
		if p.rows[i].numbers[auditTime]/1000000 == second {
			return p.firstNumber + int64(i)
		}
	}
	return p.end()
}
