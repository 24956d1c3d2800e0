package respond_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/respond"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/golden"
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
// A refused limit is first in both fields. A limit without a decision is last in RateLimit-Policy and is not
// in RateLimit. A shadow limit is in neither field.
func TestFieldsOfDraft(t *testing.T) {
	text := ""
	add := func(hits []ratelimit.Hit, decisions []ratelimit.Decision) {
		policy, rates := fieldsWithoutKeys(hits, decisions)
		text += policy + " | " + rates + "\n"
	}
	for _, c := range []struct {
		limit ratelimit.Limit
		wait  time.Duration
	}{
		{ratelimit.Limit{Prefix: `a"b\c`, Events: 5, Window: time.Minute}, time.Hour},
		{ratelimit.Limit{Prefix: "\x00\x7f\n%", Events: 5, Window: time.Minute}, 1500 * time.Millisecond},
		{ratelimit.Limit{Prefix: "never", Events: 5, Window: 1500 * time.Millisecond}, ratelimit.Never},
		{ratelimit.Limit{Prefix: "month", Events: 5, Calendar: ratelimit.Month}, time.Hour},
		{ratelimit.Limit{Prefix: "week", Events: 5, Calendar: ratelimit.Week}, time.Hour},
		{ratelimit.Limit{Prefix: "burst", Events: 3, Window: time.Second, Burst: 7}, time.Hour},
		{ratelimit.Limit{Prefix: "flight", Algorithm: ratelimit.InFlight, Events: 5}, time.Second},
		{ratelimit.Limit{Prefix: "long", Events: 1, Window: ratelimit.MaxWindow,
			Burst: ratelimit.MaxEvents}, time.Hour},
	} {
		add([]ratelimit.Hit{{Limit: &c.limit, Key: "k", Cost: 1}},
			[]ratelimit.Decision{{Quota: c.limit.Capacity(), RetryAfter: c.wait}})
	}
	var several []ratelimit.Hit
	for _, name := range []string{"undecided", "wide", "refused", "shadow"} {
		several = append(several, ratelimit.Hit{Limit: &ratelimit.Limit{Prefix: name, Events: 9,
			Window: time.Minute}, Key: "k", Cost: 1, Independent: name == "shadow"})
	}
	add(several[1:2], []ratelimit.Decision{{Allowed: true, Quota: 9, Remaining: 5}})
	add(several, []ratelimit.Decision{
		{Allowed: true, Quota: 9, Source: ratelimit.Undecided}, {Allowed: true, Quota: 9, Remaining: 5},
		{Quota: 9, RetryAfter: time.Second}, {Quota: 9},
	})
	golden.Check(t, "testdata/fields.txt", text)
}

// Restore removes the members of an upstream, and keeps the members of a later limit in this proxy.
func TestFieldsOfUpstreamAreReplaced(t *testing.T) {
	limit := ratelimit.Limit{Prefix: "first", Events: 9, Window: time.Minute}
	later := limit
	later.Prefix = "later"
	for _, informs := range []bool{false, true} {
		h := http.Header{}
		set := func(limit *ratelimit.Limit) respond.Headers {
			hits := []ratelimit.Hit{{Limit: limit}}
			decisions := []ratelimit.Decision{{Allowed: true, Quota: 9, Remaining: 8}}
			o := outcomeOf(hits, decisions)
			respond.SetFields(h, settings.Fields{IETF: true}, nil, &o, hits, decisions)
			return respond.HeadersIn(h, make(respond.Headers, respond.HeaderCount))
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
