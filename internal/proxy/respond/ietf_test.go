package respond_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/respond"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/settings"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// fieldsWithoutKeys returns RateLimit-Policy and RateLimit of decisions, without the parameter pk.
func fieldsWithoutKeys(hits []ratelimit.Hit, decisions []ratelimit.Decision) (policy, limit string) {
	h := http.Header{}
	o := outcomeOf(hits, decisions)
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

// RateLimit-Policy and RateLimit have the syntax of the draft for each kind of limit: names are quoted or
// escaped, w is left out if the length of the window varies or is not in whole seconds, and t is rounded up.
func TestFieldsOfDraft(t *testing.T) {
	for _, test := range []struct {
		limit         ratelimit.Limit
		decision      ratelimit.Decision
		policy, rates string
	}{
		{
			limit:    ratelimit.Limit{Prefix: `a"b\c`, Events: 5, Window: time.Minute},
			decision: ratelimit.Decision{Allowed: true, Quota: 5, Remaining: 5}, policy: `"a\"b\\c";q=5;w=60`,
			rates: `"a\"b\\c";r=5;t=0`,
		},
		{
			limit:    ratelimit.Limit{Prefix: "\x00\x7f\n%", Events: 5, Window: time.Minute},
			decision: ratelimit.Decision{Quota: 5, RetryAfter: 1500 * time.Millisecond},
			policy:   `"%00%7F%0A%25";q=5;w=60`, rates: `"%00%7F%0A%25";r=0;t=2`,
		},
		{
			limit:    ratelimit.Limit{Prefix: "never", Events: 5, Window: 1500 * time.Millisecond},
			decision: ratelimit.Decision{Quota: 5, Remaining: 3, RetryAfter: ratelimit.Never},
			policy:   `"never";q=5`, rates: `"never";r=3`,
		},
		{
			limit:    ratelimit.Limit{Prefix: "month", Events: 5, Calendar: ratelimit.Month},
			decision: ratelimit.Decision{Quota: 5, RetryAfter: time.Hour}, policy: `"month";q=5`,
			rates: `"month";r=0;t=3600`,
		},
		{
			limit:    ratelimit.Limit{Prefix: "week", Events: 5, Calendar: ratelimit.Week},
			decision: ratelimit.Decision{Quota: 5, RetryAfter: time.Hour}, policy: `"week";q=5;w=604800`,
			rates: `"week";r=0;t=3600`,
		},
		{
			limit:    ratelimit.Limit{Prefix: "burst", Events: 3, Window: time.Second, Burst: 7},
			decision: ratelimit.Decision{Quota: 7, RetryAfter: time.Hour}, policy: `"burst";q=7`,
			rates: `"burst";r=0;t=3600`,
		},
		{
			limit:    ratelimit.Limit{Prefix: "flight", Algorithm: ratelimit.InFlight, Events: 5},
			decision: ratelimit.Decision{Quota: 5, RetryAfter: time.Second},
			policy:   `"flight";q=5;qu="concurrent-requests"`, rates: `"flight";r=0;t=1`,
		},
		{
			limit: ratelimit.Limit{Prefix: "long", Events: 1, Window: ratelimit.MaxWindow,
				Burst: ratelimit.MaxEvents},
			decision: ratelimit.Decision{Quota: ratelimit.MaxEvents, RetryAfter: time.Hour},
			policy:   `"long";q=999999999999999`, rates: `"long";r=0;t=3600`,
		},
	} {
		policy, rates := fieldsWithoutKeys([]ratelimit.Hit{{Limit: &test.limit, Key: "k", Cost: 1}},
			[]ratelimit.Decision{test.decision})
		if policy != test.policy || rates != test.rates {
			t.Errorf("fields are %s and %s, want %s and %s", policy, rates, test.policy, test.rates)
		}
	}
}

// A refused limit is first in both fields. A limit without a decision is last in RateLimit-Policy and is not
// in RateLimit. A shadow limit is in neither field.
func TestFieldsOfSeveralLimits(t *testing.T) {
	var hits []ratelimit.Hit
	for _, name := range []string{"undecided", "wide", "refused", "shadow"} {
		hits = append(hits, ratelimit.Hit{Limit: &ratelimit.Limit{Prefix: name, Events: 9,
			Window: time.Minute}, Key: "k", Cost: 1, Independent: name == "shadow"})
	}
	policy, rates := fieldsWithoutKeys(hits, []ratelimit.Decision{
		{Allowed: true, Quota: 9, Source: ratelimit.Undecided}, {Allowed: true, Quota: 9, Remaining: 5},
		{Quota: 9, RetryAfter: time.Second}, {Quota: 9},
	})
	if want := `"refused";q=9;w=60, "wide";q=9;w=60, "undecided";q=9;w=60`; policy != want {
		t.Errorf("RateLimit-Policy is %s, want %s", policy, want)
	}
	if want := `"refused";r=0;t=1, "wide";r=5;t=0`; rates != want {
		t.Errorf("RateLimit is %s, want %s", rates, want)
	}
}

// Restore removes the members of an upstream, and keeps the members of a later limit in this proxy.
func TestFieldsOfUpstreamAreReplaced(t *testing.T) {
	limit := ratelimit.Limit{Prefix: "first", Events: 9, Window: time.Minute}
	later := limit
	later.Prefix = "later"
	for _, informs := range []bool{false, true} {
		h := http.Header{}
		set := func(limit *ratelimit.Limit) respond.Own {
			hits := []ratelimit.Hit{{Limit: limit}}
			decisions := []ratelimit.Decision{{Allowed: true, Quota: 9, Remaining: 8}}
			o := outcomeOf(hits, decisions)
			respond.SetFields(h, settings.Fields{IETF: true}, nil, &o, hits, decisions)
			return respond.OwnIn(h, make(respond.Own, respond.OwnCount))
		}
		first, second := set(&limit), set(&later)
		if informs {
			clear(h) // as a reverse proxy does after an informational response
		}
		h.Add("RateLimit", `"up";r=6`)
		h.Add("RateLimit-Policy", `"up";q=7`)
		respond.Restore(h, second)
		respond.Restore(h, first)
		for _, name := range []string{"RateLimit", "RateLimit-Policy"} {
			var names string
			for _, part := range strings.Split(strings.Join(h[http.CanonicalHeaderKey(name)], ", "),
				", ") {
				names += " " + strings.Split(part, `"`)[1]
			}
			if names != " first later" {
				t.Errorf("informational response %t: %s has%s, want first later", informs, name, names)
			}
		}
	}
}
