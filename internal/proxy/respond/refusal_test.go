package respond_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/respond"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Retry-After fits into a timer of 32 bits of milliseconds, and the body has the true time. X-Should-Retry
// forbids a retry after more than a minute. No cache stores a refusal.
func TestRefusalsTellClientsWhenToRetry(t *testing.T) {
	limited := func(wait time.Duration) respond.Outcome {
		return respond.Outcome{Status: 429, Decision: &ratelimit.Decision{RetryAfter: wait}}
	}
	for _, c := range []struct {
		what    string
		outcome respond.Outcome
		want    string // Retry-After, X-Should-Retry, Cache-Control and retryAfter in the body
	}{
		{"a minute", limited(time.Minute), "60  no-store 60"},
		{"more than a minute", limited(time.Minute + 1), "61 false no-store 61"},
		{"24 days", limited(2147483 * time.Second), "2147483 false no-store 2147483"},
		{"a month", limited(31 * 24 * time.Hour), "2147483 false no-store 2678400"},
		{"never", limited(ratelimit.Never), " false no-store 0"},
		{"a ban without an end", respond.Outcome{Status: 403, Reason: policy.Banned}, " false no-store 0"},
		{"a ban for an hour", respond.Outcome{Status: 403, Reason: policy.Banned, Wait: time.Hour},
			"3600 false no-store 3600"},
		{"an overload", respond.Outcome{Status: 503, Err: ratelimit.ErrOverloaded, Wait: time.Second},
			"1  no-store 1"},
		{"no decision", respond.Outcome{Status: 503, Err: ratelimit.ErrTimeout}, "  no-store 0"},
	} {
		h := http.Header{}
		respond.SetFields(h, settings.Fields{}, nil, &c.outcome, nil, nil)
		var body struct{ RetryAfter int64 }
		if err := json.Unmarshal([]byte(c.outcome.Body()), &body); err != nil {
			t.Fatal(err)
		}
		check.Equal(t, c.what, fmt.Sprint(h.Get("Retry-After"), " ", h.Get("X-Should-Retry"), " ",
			h.Get("Cache-Control"), " ", body.RetryAfter), c.want)
	}
}

// The error of a refusal for the SDKs of OpenAI and Anthropic is an object that names the limit.
func TestRefusalsForSDKsHaveAnObject(t *testing.T) {
	const object = `{"type":"error","error":{"message":"%s","type":"%s","code":"%s","param":null}%s}`
	limited := func(wait time.Duration) respond.Outcome {
		return respond.Outcome{Status: 429, Limit: "plan/tpm",
			Decision: &ratelimit.Decision{RetryAfter: wait}}
	}
	for _, c := range []struct {
		outcome                         respond.Outcome
		message, kind, code, retryAfter string
	}{
		{limited(27 * time.Second), "Too many requests: limit plan/tpm, retry in 27 s", "rate_limit_error",
			"rate_limit_exceeded", `,"retryAfter":27`},
		{limited(ratelimit.Never), "Too many requests: limit plan/tpm, which never admits this request",
			"rate_limit_error", "rate_limit_exceeded", ""},
		{respond.Outcome{Status: 402, Message: `Pay \"me\"`}, `Pay \\\"me\\\"`, "billing_error",
			"insufficient_quota", ""},
		{respond.Outcome{Status: 400, Reason: policy.AmbiguousPath}, "Ambiguous path",
			"invalid_request_error", "invalid_request", ""},
		{respond.Outcome{Status: 401, Reason: policy.UnknownKey}, "Unknown API key", "authentication_error",
			"invalid_api_key", ""},
		{respond.Outcome{Status: 403, Reason: policy.Banned, Wait: time.Hour}, "Banned, retry in 3600 s",
			"permission_error", "forbidden", `,"retryAfter":3600`},
		{respond.Outcome{Status: 418}, "Too many requests", "invalid_request_error", "invalid_request", ""},
		{respond.Outcome{Status: 599}, "Too many requests", "api_error", "service_unavailable", ""},
		{respond.Outcome{Status: 503, Err: ratelimit.ErrTimeout}, "Service unavailable", "api_error",
			"service_unavailable", ""},
	} {
		c.outcome.Object = true
		check.Equal(t, c.message, c.outcome.Body(),
			fmt.Sprintf(object, c.message, c.kind, c.code, c.retryAfter))
	}
}

// A budget that is used up says when it opens, also where the error is a text. Its code is that of OpenAI,
// and its type that of the API of the client. What is only held, and a limit of requests, are no such budget.
func TestUsedUpBudgetsSayWhenTheyOpen(t *testing.T) {
	const used, limited = "Budget used up: team/month opens on 2026-12-01 00:00 UTC", "Too many requests"
	budget := func(unit option.Unit, wait time.Duration) respond.Outcome {
		return respond.Outcome{Status: 429, Limit: "team/month", Unit: unit,
			Decision: &ratelimit.Decision{RetryAfter: wait,
				Reset: time.Date(2026, 12, 1, 1, 0, 2, 0, time.FixedZone("CET", 3600))}}
	}
	for _, c := range []struct {
		outcome                                respond.Outcome
		text, openai, code, anthropic, message string
	}{
		{budget(option.Money, time.Hour), used, "insufficient_quota", "insufficient_quota",
			"rate_limit_error", used},
		{budget(option.InputTokens, time.Minute+1), used, "insufficient_quota", "insufficient_quota",
			"rate_limit_error", used},
		{budget(option.Tokens, time.Minute), limited, "rate_limit_error", "rate_limit_exceeded",
			"rate_limit_error", limited + ": limit team/month, retry in 60 s"},
		{budget(option.Requests, time.Hour), limited, "rate_limit_error", "rate_limit_exceeded",
			"rate_limit_error", limited + ": limit team/month, retry in 3600 s"},
		{budget("", time.Hour), limited, "rate_limit_error", "rate_limit_exceeded",
			"rate_limit_error", limited + ": limit team/month, retry in 3600 s"},
		{budget(option.Money, ratelimit.Never), limited, "rate_limit_error", "rate_limit_exceeded",
			"rate_limit_error", limited + ": limit team/month, which never admits this request"},
	} {
		var text struct{ Error string }
		var object struct {
			Error struct{ Message, Type, Code string }
		}
		read := func(what any) {
			if err := json.Unmarshal([]byte(c.outcome.Body()), what); err != nil {
				t.Error(err)
			}
		}
		read(&text)
		check.Equal(t, "the text", text.Error, c.text)
		c.outcome.Object = true
		read(&object)
		check.Equal(t, "the object", object.Error, struct{ Message, Type, Code string }{c.message, c.openai,
			c.code})
		c.outcome.Anthropic = true
		read(&object)
		check.Equal(t, "Anthropic's type", object.Error.Type+" "+object.Error.Code, c.anthropic+" "+c.code)
	}
	paid := budget(option.Money, time.Hour)
	paid.Status, paid.Message, paid.Object, paid.Wait = 402, "Your plan is used up", true, time.Second
	check.Equal(t, "a rule's own status and message", paid.Body(), `{"type":"error","error":{"message":`+
		`"Your plan is used up: team/month opens on 2026-12-01 00:00 UTC","type":"insufficient_quota",`+
		`"code":"insufficient_quota","param":null},"retryAfter":1}`)
	paid.Anthropic = true
	if !strings.Contains(paid.Body(), `"type":"billing_error"`) {
		t.Errorf("Anthropic's form of 402 is %s, want a billing_error", paid.Body())
	}
}

// The fields that a provider sends of its own account are removed, and those of another limit's refusal stay.
func TestFieldsOfProvidersDoNotPass(t *testing.T) {
	for status, want := range map[int]string{
		200: "map[Content-Type:[x] Retry-After:[3]]",
		429: "map[Content-Type:[x] Retry-After:[3] X-Ratelimit-Limit:[9]]",
	} {
		h := http.Header{"X-Ratelimit-Limit": {"9"}, "X-Ratelimit-Remaining-Requests": {"7"},
			"x-ratelimit-reset-tokens": {"1s"}, "Anthropic-Ratelimit-Tokens-Limit": {"5"},
			"Retry-After": {"3"}, "Content-Type": {"x"}}
		respond.RemoveProviders(status, h)
		check.Equal(t, fmt.Sprint("status ", status), fmt.Sprint(h), want)
	}
}
