package edge

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Gate asks a store about requests.
type Gate struct {
	Store   ratelimit.Store
	Timeout time.Duration // for the whole decision
	OnError OnError
}

// Answer is what is to become of a request.
type Answer struct {
	// Status is 0 if the request passes, else the status to refuse it with: 429
	// for a limit, 503 where no decision could be had and OnError is Deny.
	Status int

	// Hit is the place of the limit that the answer speaks of: the one with the
	// least left, or of those that refused the one that lasts longest.
	Hit int

	// Decision is that limit's. Nil if no decision could be had.
	Decision *ratelimit.Decision

	// Err is why no decision could be had.
	Err error
}

// Ask decides a request's hits. decisions is memory for the answer, as long as
// hits. No hits pass.
func Ask(ctx context.Context, g *Gate, hits []ratelimit.Hit, decisions []ratelimit.Decision) Answer {
	if len(hits) == 0 {
		return Answer{}
	}
	if err := g.Store.Take(ctx, g.Timeout, hits, decisions); err != nil {
		return Failed(g, err)
	}
	return AnswerOf(decisions)
}

// Failed is the answer where no decision could be had.
func Failed(g *Gate, err error) Answer {
	a := Answer{Err: err}
	if g.OnError == Deny {
		a.Status = http.StatusServiceUnavailable
	}
	return a
}

// AnswerOf is the answer that decisions make: one or more.
func AnswerOf(decisions []ratelimit.Decision) Answer {
	at := Tightest(decisions)
	a := Answer{Hit: at, Decision: &decisions[at]}
	if !decisions[at].Allowed {
		a.Status = http.StatusTooManyRequests
	}
	return a
}

// Tightest is the place of the decision that tells the client most.
func Tightest(decisions []ratelimit.Decision) int {
	at := 0
	for i := 1; i < len(decisions); i++ {
		if tighter(&decisions[i], &decisions[at]) {
			at = i
		}
	}
	return at
}

// tighter reports whether a tells the client more than b.
func tighter(a, b *ratelimit.Decision) bool {
	if a.Allowed != b.Allowed {
		return !a.Allowed
	}
	if a.Allowed {
		return a.Remaining < b.Remaining
	}
	if a.RetryAfter < 0 || b.RetryAfter < 0 {
		return a.RetryAfter < 0 && b.RetryAfter >= 0
	}
	return a.RetryAfter > b.RetryAfter
}

// RetrySeconds is Retry-After: whole seconds, rounded up, at least 1. It is 0
// where the request can never pass, or was not refused by a limit.
func (a *Answer) RetrySeconds() int64 {
	if a.Decision == nil || a.Decision.Allowed {
		return 0
	}
	return wholeSeconds(a.Decision.RetryAfter)
}

// wholeSeconds is a RetryAfter in seconds, rounded up, at least 1; 0 stands for
// ratelimit.Never.
func wholeSeconds(wait time.Duration) int64 {
	if wait < 0 {
		return 0
	}
	seconds := int64(wait / time.Second)
	if wait%time.Second > 0 || seconds == 0 {
		seconds++
	}
	return seconds
}

// SetHeaders writes X-RateLimit-Limit, -Remaining, -Reset (Unix seconds, rounded
// up) and, for a refusal that time will lift, Retry-After.
func SetHeaders(h http.Header, a *Answer) {
	d := a.Decision
	if d == nil {
		return
	}
	// One piece of text and one slice hold all values. Each header's slice ends
	// where the next begins, so that one who adds to it gets memory of its own.
	text := strconv.AppendInt(make([]byte, 0, 64), d.Limit, 10)
	limitEnd := len(text)
	text = strconv.AppendInt(text, d.Remaining, 10)
	remainingEnd := len(text)
	text = strconv.AppendInt(text, d.Reset.Add(time.Second-1).Unix(), 10)
	all := string(text)
	values := []string{all[:limitEnd], all[limitEnd:remainingEnd], all[remainingEnd:]}
	h["X-Ratelimit-Limit"] = values[0:1:1]
	h["X-Ratelimit-Remaining"] = values[1:2:2]
	h["X-Ratelimit-Reset"] = values[2:3:3]
	if seconds := a.RetrySeconds(); seconds > 0 {
		h["Retry-After"] = []string{strconv.FormatInt(seconds, 10)}
	}
}

// Body is the JSON that goes with a refusal: {"error":"Too many
// requests","retryAfter":N}, without retryAfter where waiting does not help.
func (a *Answer) Body() string {
	if a.Status == http.StatusServiceUnavailable {
		return `{"error":"Service unavailable"}`
	}
	return bodyOf(a.RetrySeconds())
}

func bodyOf(seconds int64) string {
	if seconds > 0 {
		return `{"error":"Too many requests","retryAfter":` + strconv.FormatInt(seconds, 10) + `}`
	}
	return `{"error":"Too many requests"}`
}

// Refuse answers a request that does not pass.
func (a *Answer) Refuse(w http.ResponseWriter) {
	h := w.Header()
	h["Content-Type"] = []string{"application/json"}
	body := a.Body()
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	w.WriteHeader(a.Status)
	// The client may be gone; there is nobody to tell.
	_, _ = w.Write([]byte(body))
}
