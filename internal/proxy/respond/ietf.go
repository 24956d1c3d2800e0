package respond

import (
	"crypto/sha256"
	"encoding/base64"
	"math"
	"net/http"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Canonical names of the fields of the draft.
const (
	policyField = "Ratelimit-Policy"
	limitField  = "Ratelimit"
)

// addMembers appends members to a field, after the members of an earlier limit on the request.
func addMembers(h http.Header, field string, members []string) {
	h[field] = []string{strings.Join(append(h[field], members...), ", ")}
}

// fieldsOf returns a member for each enforcing limit, the tightest first. A limit without a decision has no
// member in RateLimit. Without a salt the members have no partitions.
func fieldsOf(o *Outcome, hits []ratelimit.Hit, decisions []ratelimit.Decision, salt string) ([]string,
	[]string) {
	var order []int
	var policies, limits []string
	for i := range hits {
		if !hits[i].Independent && (o.Hidden == nil || !o.Hidden[i]) {
			order = append(order, i)
		}
	}
	sort.SliceStable(order, func(a, b int) bool {
		return isBefore(&decisions[order[a]], &decisions[order[b]])
	})
	now := time.Now()
	for _, i := range order {
		hit := &hits[i]
		d := &decisions[i]
		name := `"` + escapes.Replace(percentEncoded(hit.Limit.Prefix)) + `"`
		key := ""
		if salt != "" {
			key = ";pk=:" + partition(hit, salt) + ":"
		}
		unit := ""
		if hit.Limit.Algorithm == ratelimit.InFlight {
			unit = ";qu=\"concurrent-requests\""
		}
		window := parameter(";w=", windowSeconds(hit.Limit))
		policies = append(policies, name+parameter(";q=", d.Quota)+unit+window+key)
		if d.Source != ratelimit.Undecided {
			reset := parameter(";t=", secondsUntil(o, i, d, now))
			limits = append(limits, name+parameter(";r=", d.Remaining)+reset+key)
		}
	}
	return policies, limits
}

// isBefore reports whether the member for a comes before the member for b: decisions before those that were
// not made, refusals before those that allow, and then by the longer RetryAfter or less Remaining.
func isBefore(a, b *ratelimit.Decision) bool {
	if a.Source == ratelimit.Undecided || b.Source == ratelimit.Undecided {
		return a.Source != ratelimit.Undecided
	}
	if a.Allowed != b.Allowed {
		return !a.Allowed
	}
	if a.Allowed {
		return a.Remaining < b.Remaining
	}
	return a.RetryAfter > b.RetryAfter
}

// maxFieldNumber is the largest number in a structured field.
const maxFieldNumber = 999999999999999

// parameter returns a parameter with a value, or "" if the value is unknown (below 0).
func parameter(name string, n int64) string {
	if n < 0 {
		return ""
	}
	if n > maxFieldNumber {
		n = maxFieldNumber
	}
	return name + strconv.FormatInt(n, 10)
}

// windowSeconds returns the seconds in which the whole quota becomes available again, or -1 if they differ
// between windows or are not a whole number.
func windowSeconds(l *ratelimit.Limit) int64 {
	switch l.Calendar {
	case ratelimit.Day:
		return 24 * 60 * 60
	case ratelimit.Week:
		return 7 * 24 * 60 * 60
	}
	seconds := int64(l.Window / time.Second)
	if seconds == 0 || l.Window%time.Second != 0 {
		return -1
	}
	if l.Burst == 0 || l.Burst == l.Events {
		return seconds
	}
	if l.Burst > math.MaxInt64/seconds || seconds*l.Burst%l.Events != 0 {
		return -1
	}
	return seconds * l.Burst / l.Events
}

// secondsUntil returns the seconds until Decision.Reset, or -1 if the request can never pass. For the limit
// that refuses the request, it returns the value of Retry-After, which a rule may set. at is the index of d.
func secondsUntil(o *Outcome, at int, d *ratelimit.Decision, now time.Time) int64 {
	seconds := int64(0)
	if !d.Allowed {
		seconds = retrySeconds(d.RetryAfter)
		if at == o.Hit {
			seconds = o.RetrySeconds()
		}
		if seconds == 0 {
			seconds = -1
		}
		return seconds
	}
	if rest := d.Reset.Sub(now); rest > 0 {
		seconds = int64((rest + time.Second - 1) / time.Second)
	}
	return seconds
}

// escapes escapes a string of a structured field, which has only printable ASCII: see percentEncoded.
var escapes = strings.NewReplacer(`"`, `\"`, `\`, `\\`)

// partition returns a salted digest of a key. The digests of two keys differ, and a client cannot recover a
// key from its digest.
func partition(h *ratelimit.Hit, salt string) string {
	sum := sha256.Sum256([]byte(salt + h.Limit.Prefix + "\x00" + h.Key))
	return base64.StdEncoding.EncodeToString(sum[:9])
}
