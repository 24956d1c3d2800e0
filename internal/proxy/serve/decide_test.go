package serve_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/respond"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

func TestTheDecisionsOnAPolicyAreJudged(t *testing.T) {
	allowed := func(remaining int64) ratelimit.Decision {
		return ratelimit.Decision{Allowed: true, Limit: 10, Remaining: remaining}
	}
	refused := ratelimit.Decision{Limit: 10, RetryAfter: time.Minute}
	used := func(n int64) ratelimit.Decision {
		return ratelimit.Decision{Allowed: true, Limit: ratelimit.MaxEvents,
			Remaining: ratelimit.MaxEvents - n}
	}
	plain, shadow := &policy.Mark{Status: 429}, &policy.Mark{Status: 429, Shadow: true}
	own := &policy.Mark{Status: 402, Message: "Pay", RetryAfter: time.Hour}
	overage := &policy.Mark{Overage: true, Quota: 5}
	for name, c := range map[string]struct {
		decisions []ratelimit.Decision
		marks     []*policy.Mark
		status    int
		remaining int64
		overage   int64
		retry     int64
	}{
		"all allowed": {[]ratelimit.Decision{allowed(3), allowed(2)},
			[]*policy.Mark{plain}, 0, 2, 0, 0},
		"a zone refuses": {[]ratelimit.Decision{refused, allowed(2)}, []*policy.Mark{own},
			429, 0, 0, 60},
		"a rule refuses": {[]ratelimit.Decision{allowed(3), refused}, []*policy.Mark{own},
			402, 0, 0, 3600},
		"a shadow refuses nothing": {[]ratelimit.Decision{allowed(3), refused}, []*policy.Mark{shadow},
			0, 3, 0, 0},
		"within an overage limit": {[]ratelimit.Decision{allowed(3), used(4)}, []*policy.Mark{overage},
			0, 1, 0, 0},
		"beyond an overage limit": {[]ratelimit.Decision{allowed(3), used(7)}, []*policy.Mark{overage},
			0, 0, 2, 0},
		"refused beside an overage": {[]ratelimit.Decision{refused, used(7)}, []*policy.Mark{overage},
			429, 0, 0, 60},
		"known refused, the rest is not": {[]ratelimit.Decision{refused,
			{Source: ratelimit.Undecided, Allowed: true}}, []*policy.Mark{overage}, 429, 0, 0, 60},
	} {
		hits := make([]ratelimit.Hit, len(c.decisions))
		for i := range hits {
			hits[i].Limit = &ratelimit.Limit{}
		}
		hits[len(hits)-1].Apart = c.marks[len(c.marks)-1].Shadow
		o := serve.Judge(&serve.Request{Hits: hits, Decisions: c.decisions,
			Verdict: policy.Verdict{Marks: c.marks}})
		if o.Status != c.status || o.Decision.Remaining != c.remaining || o.Overage != c.overage ||
			o.RetrySeconds() != c.retry {
			t.Errorf("%s: %+v with %d left, Retry-After %d; want %+v", name, o, o.Decision.Remaining,
				o.RetrySeconds(), c)
		}
	}
	if o := serve.Judge(&serve.Request{Hits: []ratelimit.Hit{{Apart: true}},
		Decisions: []ratelimit.Decision{refused},
		Verdict:   policy.Verdict{Marks: []*policy.Mark{shadow}}}); o.Status != 0 || o.Decision != nil {
		t.Errorf("a shadow alone: %+v", o)
	}
}

// The outcome names a limit that let a request pass beyond its quota, with the units beyond.
func TestAnExceededLimitIsNamed(t *testing.T) {
	overage := &policy.Mark{Overage: true, Quota: 5}
	trial := &policy.Mark{Overage: true, Quota: 5, Shadow: true}
	limit := &ratelimit.Limit{}
	plain, shadow := ratelimit.Hit{Limit: limit, Cost: 1}, ratelimit.Hit{Limit: limit, Cost: 9, Apart: true}
	room := ratelimit.Decision{Allowed: true, Limit: 10, Remaining: 3}
	full := ratelimit.Decision{Limit: 10, Remaining: 2, RetryAfter: time.Minute}
	used := ratelimit.Decision{Allowed: true, Limit: 100, Remaining: 100 - 16}
	for name, c := range map[string]struct {
		hits      []ratelimit.Hit
		decisions []ratelimit.Decision
		marks     []*policy.Mark
		at        int
		by        int64
	}{
		"none":           {[]ratelimit.Hit{plain, shadow}, []ratelimit.Decision{room, room}, nil, 0, 0},
		"a shadow limit": {[]ratelimit.Hit{plain, shadow}, []ratelimit.Decision{room, full}, nil, 1, 7},
		"a shadow alone": {[]ratelimit.Hit{shadow}, []ratelimit.Decision{full}, nil, 0, 7},
		"an overage": {[]ratelimit.Hit{plain}, []ratelimit.Decision{used}, []*policy.Mark{overage}, 0,
			11},
		"a trial of overage": {[]ratelimit.Hit{shadow}, []ratelimit.Decision{used}, []*policy.Mark{trial}, 0,
			0},
		"the one that is exceeded most": {[]ratelimit.Hit{plain, plain, shadow},
			[]ratelimit.Decision{room, used, full}, []*policy.Mark{overage, {Shadow: true}}, 1, 11},
		"undecided": {[]ratelimit.Hit{plain, shadow},
			[]ratelimit.Decision{room, {Source: ratelimit.Undecided}}, nil, 0, 0},
	} {
		o := serve.Judge(&serve.Request{Hits: c.hits, Decisions: c.decisions,
			Verdict: policy.Verdict{Marks: c.marks}})
		if o.Exceeded != c.at || o.ExceededBy != c.by {
			t.Errorf("%s: hit %d by %d, want %d by %d", name, o.Exceeded, o.ExceededBy, c.at, c.by)
		}
	}
}

// The body of a refusal is valid JSON whatever message an operator writes.
func TestTheMessageOfARuleIsJSON(t *testing.T) {
	for text, want := range map[string]string{
		`say "no"` + "\n": `{"error":"say \"no\"\n"}`,
		"<b>\xff":         `{"error":"\u003cb\u003e\ufffd"}`,
	} {
		o := respond.Outcome{Status: http.StatusForbidden, Message: text}
		if got := o.Body(); got != want {
			t.Errorf("%q is %s, want %s", text, got, want)
		}
	}
}
