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
	refused   = ratelimit.Decision{Quota: 10, Remaining: 2, RetryAfter: time.Minute}
	undecided = ratelimit.Decision{Source: ratelimit.Undecided, Allowed: true}
	plain     = &policy.Terms{Status: 429}
	shadow    = &policy.Terms{Status: 429, Shadow: true}
	own       = &policy.Terms{Status: 402, Message: "Pay", RetryAfter: time.Hour}
	overage   = &policy.Terms{Overage: true, Quota: 5}
	trial     = &policy.Terms{Overage: true, Quota: 5, Shadow: true}
)

// judged is a decision on a limit, a zone of the configuration or a rule of the policy, with its terms.
type judged struct {
	decision ratelimit.Decision
	terms    *policy.Terms
}

// The tightest limit determines the response, whichever has it. A shadow rule refuses nothing. If a request
// passes beyond a quota, in a shadow or as an overage, the outcome names the limit and the units beyond.
func TestOutcomeOfZonesAndRules(t *testing.T) {
	for name, c := range map[string]struct {
		limits []judged
		want   string // the status, what remains, the overage, the wait; which limit is exceeded by how much
	}{
		"all allowed": {[]judged{{allowed(3), plain}, {allowed(2), plain}},
			"0 2 0 0, 0 by 0"},
		"a zone refuses": {[]judged{{refused, plain}, {allowed(2), own}},
			"429 2 0 60, 0 by 0"},
		"a rule refuses": {[]judged{{allowed(3), plain}, {refused, own}},
			"402 2 0 3600, 0 by 0"},
		"a shadow refuses nothing": {[]judged{{allowed(3), plain}, {refused, shadow}},
			"0 3 0 0, 1 by 7"},
		"a shadow alone": {[]judged{{refused, shadow}}, "0 0 0 0, 0 by 7"},
		"within an overage limit": {[]judged{{allowed(3), plain}, {used(4), overage}},
			"0 1 0 0, 0 by 0"},
		"beyond an overage limit": {[]judged{{allowed(3), plain}, {used(7), overage}},
			"0 0 2 0, 1 by 2"},
		"an overage":         {[]judged{{used(16), overage}}, "0 0 11 0, 0 by 11"},
		"a trial of overage": {[]judged{{used(16), trial}}, "0 0 0 0, 0 by 0"},
		"the one that is exceeded most": {[]judged{{allowed(3), plain}, {used(16), overage},
			{refused, shadow}}, "0 0 11 0, 1 by 11"},
		"refused beside an overage": {[]judged{{refused, plain}, {used(7), overage}},
			"429 2 0 60, 0 by 0"},
		"refused beside an undecided limit": {[]judged{{refused, plain}, {undecided, overage}},
			"429 2 0 60, 0 by 0"},
		"an undecided shadow": {[]judged{{allowed(3), plain}, {undecided, shadow}},
			"0 3 0 0, 0 by 0"},
	} {
		q := &serve.Request{}
		for _, l := range c.limits {
			hit := ratelimit.Hit{Limit: &ratelimit.Limit{}, Cost: 1, Independent: l.terms.Shadow}
			if hit.Independent {
				hit.Cost = 9
			}
			q.Hits, q.Terms = append(q.Hits, hit), append(q.Terms, l.terms)
			q.Decisions = append(q.Decisions, l.decision)
		}
		serve.SetOutcomes(q)
		o := q.Outcome
		remaining := int64(0)
		if o.Decision != nil {
			remaining = o.Decision.Remaining
		}
		check.Equal(t, name, fmt.Sprintf("%d %d %d %d, %d by %d", o.Status, remaining, o.Overage,
			o.RetrySeconds(), o.ExceededHit, o.ExceededBy), c.want)
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
			o := serve.TakeLocal(&serve.Site{Handler: settings.Handler{OnError: onError}}, &serve.Request{
				Hits: []ratelimit.Hit{c.hit}, Terms: []*policy.Terms{c.terms}}, c.err)
			check.Equal(t, fmt.Sprintf("on_error %s, %+v", onError, *c.terms),
				fmt.Sprintf("%d, retry after %v", o.Status, o.RetryAfter), c.want)
		}
	}
}
