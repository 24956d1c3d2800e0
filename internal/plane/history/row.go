package history

import (
	"strconv"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// auditRow is a row of the audit log that waits to be written.
type auditRow struct {
	micros   int64 // the time, in microseconds since 1970
	outcome  OutcomeKind
	count    int64
	cost     int64
	quota    int64
	left     int64
	keyID    int64
	retry    int64 // in milliseconds; -1 is none
	duration int64 // in microseconds
	status   int64
	weight   string

	reason, prefix, limit, tier            string
	key, user, address, host, method, path string
	also                                   string // as a literal of a text[]; "" is NULL
	bytes                                  int64
}

// fill sets x to the row of a record. It copies the record's texts, because a substring keeps the whole
// text in memory: that of a path includes the query.
func (x *auditRow) fill(r *Record, micros int64, weight string, mode settings.AddressMode) {
	x.micros = micros
	x.outcome = r.Outcome
	x.count = 1
	x.cost = r.Cost
	x.quota = r.Quota
	x.left = r.Remaining
	x.keyID = r.KeyID
	x.status = int64(r.Status)
	x.duration = r.Duration.Microseconds()
	x.weight = weight
	x.retry = -1
	if r.RetryAfter > 0 && r.RetryAfter != ratelimit.Never {
		x.retry = (r.RetryAfter + 999999).Milliseconds()
	}
	x.reason = cleanText(r.Reason, maxText)
	x.prefix = cleanText(r.Prefix, maxText)
	x.limit = cleanText(r.Limit, maxText)
	x.address = maskAddress(mode, r.Address)
	x.also = ""
	if len(r.Also) > 0 {
		x.also = alsoText(r, mode)
	}
	key := cleanText(maskKey(mode, r.Key, r.Address), maxKey)
	user := cleanText(r.User, maxKey)
	tier := cleanText(r.Tier, maxText)
	host := cleanText(r.Host, maxText)
	method := cleanText(r.Method, maxMethod)
	path := cleanPath(r.Path)

	all := key + user + tier + host + method + path // one allocation
	at := len(key)
	x.key = all[:at]
	x.user = all[at : at+len(user)]
	at += len(user)
	x.tier = all[at : at+len(tier)]
	at += len(tier)
	x.host = all[at : at+len(host)]
	at += len(host)
	x.method = all[at : at+len(method)]
	x.path = all[at+len(method):]
	x.bytes = int64(len(all) + len(x.also) + len(x.address))
}

// alsoText returns Record.Also as a literal of a text[].
func alsoText(r *Record, mode settings.AddressMode) string {
	var b strings.Builder
	for i := 0; i+1 < len(r.Also) && i < maxAlso; i += 2 {
		if i > 0 {
			b.WriteByte(',')
		} else {
			b.WriteByte('{')
		}
		writeElement(&b, cleanText(r.Also[i], maxText))
		b.WriteByte(',')
		writeElement(&b, cleanText(maskKey(mode, r.Also[i+1], r.Address), maxKey))
	}
	if b.Len() == 0 {
		return ""
	}
	b.WriteByte('}')
	return b.String()
}

// writeElement writes an element of an array literal.
func writeElement(b *strings.Builder, text string) {
	if strings.IndexByte(text, '\\') >= 0 {
		text = strings.ReplaceAll(text, `\`, `\\`)
	}
	if strings.IndexByte(text, '"') >= 0 {
		text = strings.ReplaceAll(text, `"`, `\"`)
	}
	b.WriteByte('"')
	b.WriteString(text)
	b.WriteByte('"')
}

// weightText returns the number of requests that one of a sample represents.
func weightText(share float64) string {
	return strconv.FormatFloat(1/share, 'g', -1, 64)
}
