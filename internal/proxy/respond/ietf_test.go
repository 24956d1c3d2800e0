package respond_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/respond"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// fields returns RateLimit-Policy and RateLimit of decisions, without pk.
func fields(hits []ratelimit.Hit, decisions []ratelimit.Decision) (policy, limit string) {
	h := http.Header{}
	o := outcome(hits, decisions)
	respond.SetFields(h, settings.Fields{IETF: true}, nil, &o, hits, decisions)
	withoutKeys := func(text string) string {
		for {
			before, after, found := strings.Cut(text, ";pk=:")
			if !found {
				return text
			}
			_, rest, _ := strings.Cut(after, ":")
			text = before + rest
		}
	}
	return withoutKeys(h.Get("RateLimit-Policy")), withoutKeys(h.Get("RateLimit"))
}

func TestTheFieldsOfTheDraft(t *testing.T) {
	for _, test := range []struct {
		limit         ratelimit.Limit
		decision      ratelimit.Decision
		policy, rates string
	}{
		{ratelimit.Limit{Prefix: `a"b\c`, Events: 5, Window: time.Minute}, ratelimit.Decision{Allowed: true,
			Limit: 5, Remaining: 5}, `"a\"b\\c";q=5;w=60`, `"a\"b\\c";r=5;t=0`},
		{ratelimit.Limit{Prefix: "\x00\x7f\n%", Events: 5, Window: time.Minute}, ratelimit.Decision{Limit: 5,
			RetryAfter: 1500 * time.Millisecond}, `"%00%7F%0A%25";q=5;w=60`, `"%00%7F%0A%25";r=0;t=2`},
		{ratelimit.Limit{Prefix: "never", Events: 5, Window: 1500 * time.Millisecond},
			ratelimit.Decision{Limit: 5, Remaining: 3, RetryAfter: ratelimit.Never}, `"never";q=5`,
			`"never";r=3`},
		{ratelimit.Limit{Prefix: "month", Events: 5, Calendar: ratelimit.Month}, ratelimit.Decision{Limit: 5,
			RetryAfter: time.Hour}, `"month";q=5`, `"month";r=0;t=3600`},
		{ratelimit.Limit{Prefix: "week", Events: 5, Calendar: ratelimit.Week}, ratelimit.Decision{Limit: 5,
			RetryAfter: time.Hour}, `"week";q=5;w=604800`, `"week";r=0;t=3600`},
		{ratelimit.Limit{Prefix: "burst", Events: 3, Window: time.Second, Burst: 7},
			ratelimit.Decision{Limit: 7, RetryAfter: time.Hour}, `"burst";q=7`, `"burst";r=0;t=3600`},
		{ratelimit.Limit{Prefix: "flight", Algorithm: ratelimit.InFlight, Events: 5},
			ratelimit.Decision{Limit: 5, RetryAfter: time.Second}, `"flight";q=5;qu="concurrent-requests"`,
			`"flight";r=0;t=1`},
		{ratelimit.Limit{Prefix: "long", Events: 1, Window: ratelimit.MaxWindow, Burst: ratelimit.MaxEvents},
			ratelimit.Decision{Limit: ratelimit.MaxEvents, RetryAfter: time.Hour}, `"long";q=999999999999999`,
			`"long";r=0;t=3600`},
	} {
		policy, rates := fields([]ratelimit.Hit{{Limit: &test.limit, Key: "k", Cost: 1}},
			[]ratelimit.Decision{test.decision})
		if policy != test.policy || rates != test.rates {
			t.Errorf("the fields are %s and %s, want %s and %s", policy, rates, test.policy, test.rates)
		}
	}
}

// A limit without a decision comes last, and RateLimit does not have it. A shadow is in neither field.
func TestTheFieldsOfSeveralLimits(t *testing.T) {
	var hits []ratelimit.Hit
	for _, name := range []string{"undecided", "wide", "refused", "shadow"} {
		hits = append(hits, ratelimit.Hit{Limit: &ratelimit.Limit{Prefix: name, Events: 9,
			Window: time.Minute}, Key: "k", Cost: 1, Apart: name == "shadow"})
	}
	policy, rates := fields(hits, []ratelimit.Decision{
		{Allowed: true, Limit: 9, Source: ratelimit.Undecided}, {Allowed: true, Limit: 9, Remaining: 5},
		{Limit: 9, RetryAfter: time.Second}, {Limit: 9},
	})
	if policy != `"refused";q=9;w=60, "wide";q=9;w=60, "undecided";q=9;w=60` ||
		rates != `"refused";r=0;t=1, "wide";r=5;t=0` {
		t.Errorf("got %s and %s, want the refused limit first, and undecided in the policy alone",
			policy, rates)
	}
}

// RestoreFields removes the members of an upstream, and keeps those of a later limit in this proxy.
func TestTheFieldsOfAnUpstream(t *testing.T) {
	limit := ratelimit.Limit{Prefix: "first", Events: 9, Window: time.Minute}
	later := limit
	later.Prefix = "later"
	{
		for _, informs := range []bool{false, true} {
			h := http.Header{}
			set := func(limit *ratelimit.Limit) *respond.OwnFields {
				hits := []ratelimit.Hit{{Limit: limit}}
				decisions := []ratelimit.Decision{{Allowed: true, Limit: 9, Remaining: 8}}
				o := outcome(hits, decisions)
				respond.SetFields(h, settings.Fields{IETF: true}, nil, &o, hits, decisions)
				own := respond.OwnFieldsIn(h)
				return own
			}
			first, second := set(&limit), set(&later)
			if informs {
				clear(h) // as a reverse proxy does after an informational response
			}
			h.Add("RateLimit", `"up";r=6`)
			h.Add("RateLimit-Policy", `"up";q=7`)
			respond.RestoreFields(h, second)
			respond.RestoreFields(h, first)
			for _, name := range []string{"RateLimit", "RateLimit-Policy"} {
				var names string
				for _, part := range strings.Split(strings.Join(h[http.CanonicalHeaderKey(name)], ", "),
					", ") {
					names += " " + strings.Split(part, `"`)[1]
				}
				if names != " first later" {
					t.Errorf("after an informational response: %t: %s has%s", informs, name, names)
				}
			}
		}
	}
}
