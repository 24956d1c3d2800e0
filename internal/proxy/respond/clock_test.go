package respond_test

import (
	"fmt"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/respond"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/settings"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// decisionsOf returns the decisions that a server with a clock that is ahead made some time ago.
func decisionsOf(now time.Time, ahead, ago time.Duration) []ratelimit.Decision {
	return []ratelimit.Decision{{Allowed: true, Quota: 5, DecidedAt: now.Add(ahead - ago).UnixMicro()}}
}

// The estimate finds how many seconds the clock of the database is ahead or behind, although responses arrive
// up to 2.1 s late. A difference of a second counts as none.
func TestClockOfDatabaseIsEstimated(t *testing.T) {
	for _, ahead := range []time.Duration{10 * time.Minute, -10 * time.Minute, time.Hour, 0, time.Second} {
		var c respond.Clock
		want := int64(ahead / time.Second)
		if ahead == time.Second {
			want = 0 // a network can take as long
		}
		now := time.Unix(1_700_000_000, 0)
		for i := range 100 {
			now = now.Add(300 * time.Millisecond)
			late := time.Duration(i%4) * 700 * time.Millisecond // the delay of the response
			if got := c.Ahead(decisionsOf(now, ahead, late), now); got != want {
				t.Fatalf("%v ahead: estimated %d s after %d responses, want %d", ahead, got, i+1, want)
			}
		}
	}
}

// When the clock of the database is set, the estimate follows within 30 s. Decisions of this process do not
// change the estimate, and a nil Clock is never ahead.
func TestEstimateFollowsClockOfDatabase(t *testing.T) {
	var c respond.Clock
	now := time.Unix(1_700_000_000, 0)
	c.Ahead(decisionsOf(now, time.Hour, 0), now)
	for range 30 {
		now = now.Add(time.Second)
		c.Ahead(decisionsOf(now, 0, 0), now)
	}
	if got := c.Ahead(nil, now); got != 0 {
		t.Errorf("%d s ahead long after the clock was set, want 0", got)
	}
	c.Ahead([]ratelimit.Decision{{Source: ratelimit.FromMemory, DecidedAt: 1}}, now)
	if got := c.Ahead(nil, now); got != 0 {
		t.Errorf("%d s ahead after a decision of this process, want 0", got)
	}
	if got := (*respond.Clock)(nil).Ahead(decisionsOf(now, time.Hour, 0), now); got != 0 {
		t.Errorf("a nil Clock is %d s ahead, want 0", got)
	}
}

// The times that a client gets do not depend on the clock of the database. Local decisions, which have the
// source FromMemory, are by this clock, too.
func TestResetIsByTheClockOfTheProxy(t *testing.T) {
	now := time.Now()
	want := now.Unix() + 60
	for _, source := range []ratelimit.Source{ratelimit.FromPostgres, ratelimit.FromMemory} {
		reset := time.Unix(now.Unix()+660, 0)
		decisions := []ratelimit.Decision{{Allowed: true, Quota: 5, Remaining: 4, Reset: reset,
			Source: source}}
		respond.ShiftResets(decisions, 600)
		hits := []ratelimit.Hit{{Limit: &ratelimit.Limit{Prefix: "p", Events: 5, Window: time.Hour}}}
		o := respond.Outcome{Decision: &decisions[0], Requests: &decisions[0]}
		h := http.Header{}
		respond.SetFields(h, settings.Fields{X: true, IETF: true}, nil, &o, hits, decisions)
		if got := h.Get("X-RateLimit-Reset"); got != strconv.FormatInt(want, 10) {
			t.Errorf("%v: reset %s, want %d", source, got, want)
		}
		field := func(left int64) string { return fmt.Sprint(`"p";r=4;t=`, left) }
		left := want - now.Unix() // or a second less, if the next second has begun
		if got := h.Get("RateLimit"); got != field(left) && got != field(left-1) {
			t.Errorf("%v: RateLimit: %s, want %s", source, got, field(left))
		}
	}
}

// If a request passes a limit with a quota and an in_flight limit, the X-RateLimit headers describe the
// quota, because a client can plan with it. The headers of a refusal describe the limit that refused, and of
// several the one that can never admit the request.
func TestHeadersDescribeQuotaBesideSlots(t *testing.T) {
	slots := &ratelimit.Limit{Prefix: "slots", Algorithm: ratelimit.InFlight, Events: 4}
	tokens := &ratelimit.Limit{Prefix: "tokens", Events: 1000, Window: time.Minute}
	hits := []ratelimit.Hit{{Limit: slots}, {Limit: tokens}}
	full := ratelimit.Decision{Quota: 4, RetryAfter: 3 * time.Second}
	free := ratelimit.Decision{Allowed: true, Quota: 4, Remaining: 3}
	some := ratelimit.Decision{Allowed: true, Quota: 1000, Remaining: 700}
	spent := ratelimit.Decision{Quota: 1000, RetryAfter: time.Second}
	never := ratelimit.Decision{Quota: 1000, RetryAfter: ratelimit.Never}
	undecided := ratelimit.Decision{Allowed: true, Quota: 1000, Source: ratelimit.Undecided}
	type list = []ratelimit.Decision
	for name, c := range map[string]struct {
		decisions list // on slots and on tokens
		want      string
	}{
		"both have room":     {decisions: list{free, some}, want: "tokens, limit 1000, wait "},
		"no slot":            {decisions: list{full, some}, want: "slots, limit 4, wait 3"},
		"no quota":           {decisions: list{free, spent}, want: "tokens, limit 1000, wait 1"},
		"neither":            {decisions: list{full, spent}, want: "slots, limit 4, wait 3"},
		"no slot, and never": {decisions: list{full, never}, want: "tokens, limit 1000, wait "},
		"no slot, by memory": {decisions: list{full, undecided}, want: "slots, limit 4, wait 3"},
		"only slots":         {decisions: list{full}, want: "slots, limit 4, wait 3"},
	} {
		o := outcomeOf(hits[:len(c.decisions)], c.decisions)
		h := http.Header{}
		respond.SetFields(h, settings.Fields{X: true}, nil, &o, nil, nil)
		got := fmt.Sprintf("%s, limit %s, wait %s", hits[o.Hit].Limit.Prefix, h.Get("X-RateLimit-Limit"),
			h.Get("Retry-After"))
		if got != c.want {
			t.Errorf("%s: the headers are those of %s, want %s", name, got, c.want)
		}
	}
}
