package serve_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// allowed returns a decision of a limit of 10.
func allowed(remaining int64) ratelimit.Decision {
	return ratelimit.Decision{Allowed: true, Quota: 10, Remaining: remaining}
}

// used returns a decision of a limit that was charged n units. It has no quota, like a limit with overage.
func used(n int64) ratelimit.Decision {
	return ratelimit.Decision{Allowed: true, Quota: ratelimit.MaxEvents, Remaining: ratelimit.MaxEvents - n}
}

var (
	refused = ratelimit.Decision{Quota: 10, RetryAfter: time.Minute}
	plain   = &policy.Terms{Status: 429}
	shadow  = &policy.Terms{Status: 429, Shadow: true}
	own     = &policy.Terms{Status: 402, Message: "Pay", RetryAfter: time.Hour}
	overage = &policy.Terms{Overage: true, Quota: 5}
)

// result describes the response to a client. wait is in seconds.
type result struct {
	status                   int
	remaining, overage, wait int64
}

// outcomeTests lists decisions on a zone and on a rule with terms, and the result of both.
var outcomeTests = map[string]struct {
	zone, rule ratelimit.Decision
	terms      *policy.Terms
	want       result
}{
	"all allowed":    {zone: allowed(3), rule: allowed(2), terms: plain, want: result{remaining: 2}},
	"a zone refuses": {zone: refused, rule: allowed(2), terms: own, want: result{status: 429, wait: 60}},
	"a rule refuses": {zone: allowed(3), rule: refused, terms: own, want: result{status: 402, wait: 3600}},
	"a shadow refuses nothing": {
		zone: allowed(3), rule: refused, terms: shadow, want: result{remaining: 3},
	},
	"within an overage limit": {
		zone: allowed(3), rule: used(4), terms: overage, want: result{remaining: 1},
	},
	"beyond an overage limit": {
		zone: allowed(3), rule: used(7), terms: overage, want: result{overage: 2},
	},
	"refused beside an overage": {
		zone: refused, rule: used(7), terms: overage, want: result{status: 429, wait: 60},
	},
	"refused beside an undecided limit": {
		zone: refused, rule: ratelimit.Decision{Source: ratelimit.Undecided, Allowed: true}, terms: overage,
		want: result{status: 429, wait: 60},
	},
}

// The tightest limit determines the response, whether a zone of the configuration or a rule of the policy has
// it. A shadow rule refuses nothing.
func TestOutcomeOfZonesAndRules(t *testing.T) {
	for name, c := range outcomeTests {
		limit := &ratelimit.Limit{}
		o := serve.Judge(&serve.Request{
			Hits:      []ratelimit.Hit{{Limit: limit}, {Limit: limit, Independent: c.terms.Shadow}},
			Decisions: []ratelimit.Decision{c.zone, c.rule},
			Terms:     []*policy.Terms{plain, c.terms},
		})
		got := result{o.Status, o.Decision.Remaining, o.Overage, o.RetrySeconds()}
		if got != c.want {
			t.Errorf("%s: got %+v, want %+v", name, got, c.want)
		}
	}
	o := serve.Judge(&serve.Request{Hits: []ratelimit.Hit{{Independent: true}},
		Decisions: []ratelimit.Decision{refused}, Terms: []*policy.Terms{shadow}})
	if o.Status != 0 || o.Decision != nil {
		t.Errorf("a shadow alone: status %d and decision %v, want 0 and nil", o.Status, o.Decision)
	}
}

// A request that is not decided because of an overload, or because another version made the tables, is
// refused whatever on_error is, unless its decisions could not refuse it.
func TestOverloadOpensNoLimit(t *testing.T) {
	limit := &ratelimit.Limit{}
	for _, onError := range []settings.OnError{settings.Allow, settings.Deny, settings.Local} {
		for _, c := range []struct {
			hit   ratelimit.Hit
			terms *policy.Terms
			err   error
			want  string
		}{
			{ratelimit.Hit{Limit: limit, Cost: 1}, plain, ratelimit.ErrOverloaded, "503, retry after 1s"},
			{ratelimit.Hit{Limit: limit, Cost: 1}, plain, policy.ErrVersion, "503, retry after 10s"},
			{ratelimit.Hit{Limit: limit, Cost: 1, Independent: true}, shadow, policy.ErrVersion,
				"0, retry after 0s"},
			{ratelimit.Hit{Limit: limit, Cost: 1}, overage, ratelimit.ErrOverloaded, "0, retry after 0s"},
		} {
			o := serve.TakeLocal(&serve.Site{OnError: onError}, &serve.Request{Hits: []ratelimit.Hit{c.hit},
				Terms: []*policy.Terms{c.terms}}, c.err)
			check.Equal(t, fmt.Sprintf("on_error %s, %+v", onError, *c.terms),
				fmt.Sprintf("%d, retry after %v", o.Status, o.Wait), c.want)
		}
	}
}

// If a request passes beyond a quota, in a shadow or as an overage, the outcome names the limit and the units
// beyond the quota.
func TestOutcomeHasExceededLimit(t *testing.T) {
	trial := &policy.Terms{Overage: true, Quota: 5, Shadow: true}
	limit := &ratelimit.Limit{}
	plain := ratelimit.Hit{Limit: limit, Cost: 1}
	shadow := ratelimit.Hit{Limit: limit, Cost: 9, Independent: true}
	both, admitted := []ratelimit.Hit{plain, shadow}, allowed(3)
	refused := ratelimit.Decision{Quota: 10, Remaining: 2, RetryAfter: time.Minute}
	overageBy11 := used(16)
	ofBoth := []*policy.Terms{{}, {Shadow: true}}
	for name, c := range map[string]struct {
		hits      []ratelimit.Hit
		decisions []ratelimit.Decision
		terms     []*policy.Terms
		exceeded  int
		excess    int64
	}{
		"none": {
			hits: both, decisions: []ratelimit.Decision{admitted, admitted}, terms: ofBoth,
		},
		"a shadow limit": {
			hits: both, decisions: []ratelimit.Decision{admitted, refused}, terms: ofBoth,
			exceeded: 1, excess: 7,
		},
		"a shadow alone": {
			hits: []ratelimit.Hit{shadow}, decisions: []ratelimit.Decision{refused},
			terms: ofBoth[1:], excess: 7,
		},
		"an overage": {
			hits: []ratelimit.Hit{plain}, decisions: []ratelimit.Decision{overageBy11},
			terms: []*policy.Terms{overage}, excess: 11,
		},
		"a trial of overage": {
			hits: []ratelimit.Hit{shadow}, decisions: []ratelimit.Decision{overageBy11},
			terms: []*policy.Terms{trial},
		},
		"the one that is exceeded most": {
			hits:      []ratelimit.Hit{plain, plain, shadow},
			decisions: []ratelimit.Decision{admitted, overageBy11, refused},
			terms:     []*policy.Terms{{}, overage, {Shadow: true}}, exceeded: 1, excess: 11,
		},
		"undecided": {
			hits:      both,
			decisions: []ratelimit.Decision{admitted, {Source: ratelimit.Undecided}}, terms: ofBoth,
		},
	} {
		o := serve.Judge(&serve.Request{Hits: c.hits, Decisions: c.decisions, Terms: c.terms})
		if o.Exceeded != c.exceeded || o.ExceededBy != c.excess {
			t.Errorf("%s: exceeded hit %d by %d, want %d by %d", name, o.Exceeded, o.ExceededBy, c.exceeded,
				c.excess)
		}
	}
}
