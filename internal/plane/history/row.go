package history

import (
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// SplitPrefix splits a prefix "rule/NAME/LIMIT" into "rule/NAME" and "LIMIT", for the columns prefix and
// limit_name. A NAME contains no slash. For any other prefix, counter is the whole prefix and limit is "".
func SplitPrefix(prefix string) (counter, limit string) {
	if !strings.HasPrefix(prefix, option.RulePrefix) {
		return prefix, ""
	}
	i := strings.IndexByte(prefix[len(option.RulePrefix):], '/')
	if i < 0 {
		return prefix, ""
	}
	i += len(option.RulePrefix)
	return prefix[:i], prefix[i+1:]
}

// auditRow is a row of the audit log that waits to be written.
type auditRow struct {
	numbers [auditNumbers]int64
	texts   [auditTexts]string
	bytes   int64 // of the texts
}

// orNull returns n, or -1 for 0. The negative number becomes NULL in the table.
func orNull(n int64) int64 {
	if n == 0 {
		return -1
	}
	return n
}

// fill sets the row to the values of a record. fill copies the texts, because a substring keeps its whole
// string in memory: a path without its query would still hold the query.
func (row *auditRow) fill(r *Record, micros int64, weight string, mode option.AddressMode) {
	n := &row.numbers
	n[auditTime] = micros
	n[auditCost] = r.Cost
	n[auditCount] = 1
	n[auditQuota] = -1
	n[auditRemaining] = -1
	if r.Quota != 0 {
		n[auditQuota] = r.Quota
		n[auditRemaining] = r.Remaining
	}
	n[auditKeyID] = orNull(r.KeyID)
	n[auditStatus] = orNull(int64(r.Status))
	n[auditDuration] = r.Duration.Microseconds()
	n[auditRetry] = -1
	if r.RetryAfter > 0 && r.RetryAfter != ratelimit.Never {
		n[auditRetry] = (r.RetryAfter + 999999).Milliseconds()
	}
	t := row.texts[:]
	prefix, limit := SplitPrefix(r.Prefix)
	t[auditOutcome] = r.Outcome.String()
	t[auditShadow] = "f"
	if r.Shadow {
		t[auditShadow] = "t"
	}
	t[auditReason] = CleanText(r.Reason, maxText)
	t[auditModel] = r.Model
	t[auditPrefix] = CleanText(prefix, maxText)
	t[auditLimit] = CleanText(limit, maxText)
	t[auditAddress] = maskAddress(mode, r.Address)
	t[auditWeight] = weight
	t[auditUnit] = r.Unit
	if len(r.Also) > 0 {
		t[auditAlso] = alsoText(r, mode)
	}
	t[auditKey] = CleanText(maskKey(mode, r.Key, r.Address), maxKey)
	t[auditUser] = CleanText(r.User, maxKey)
	t[auditTier] = CleanText(r.Tier, maxText)
	t[auditHost] = CleanText(r.Host, maxText)
	t[auditMethod] = CleanText(r.Method, maxMethod)
	t[auditPath] = cleanPath(r.Path)
	joined := strings.Join(t, "") // one allocation
	start := 0
	for i, text := range t {
		end := start + len(text)
		t[i] = joined[start:end]
		start = end
	}
	row.bytes = int64(start)
}

// alsoText returns Record.Also as the literal of a text[].
func alsoText(r *Record, mode option.AddressMode) string {
	var b strings.Builder
	for i := 0; i+1 < len(r.Also) && i < maxAlso; i += 2 {
		if i > 0 {
			b.WriteByte(',')
		} else {
			b.WriteByte('{')
		}
		writeElement(&b, CleanText(r.Also[i], maxText))
		b.WriteByte(',')
		writeElement(&b, CleanText(maskKey(mode, r.Also[i+1], r.Address), maxKey))
	}
	if b.Len() == 0 {
		return ""
	}
	b.WriteByte('}')
	return b.String()
}

// writeElement appends a quoted element of an array literal.
func writeElement(b *strings.Builder, text string) {
	b.WriteByte('"')
	b.WriteString(strings.ReplaceAll(strings.ReplaceAll(text, `\`, `\\`), `"`, `\"`))
	b.WriteByte('"')
}
