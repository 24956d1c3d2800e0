package respond_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

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

// A refused call of gRPC has the status and the message of gRPC in headers, and says when to retry.
func TestCallsOfGRPCAreRefusedAsGRPCDoes(t *testing.T) {
	limited := &ratelimit.Decision{RetryAfter: 1500 * time.Millisecond}
	for _, c := range []struct {
		outcome respond.Outcome
		want    string // the status of HTTP, grpc-status, the pushback and the message
	}{
		{respond.Outcome{Status: 429, Decision: limited, Limit: "ä%"},
			"200 8 2000 Too many requests: limit %C3%A4%25, retry in 2 s"},
		{respond.Outcome{Status: 429, Decision: &ratelimit.Decision{RetryAfter: time.Hour}, Limit: "a"},
			"200 8 -1 Too many requests: limit a, retry in 3600 s"},
		{respond.Outcome{Status: 401, Reason: policy.NoKey}, "200 16 -1 Unauthorized"},
		{respond.Outcome{Status: 403, Reason: policy.Banned}, "200 7 -1 Banned"},
		{respond.Outcome{Status: 400, Reason: policy.AmbiguousPath}, "200 13 -1 Ambiguous path"},
		{respond.Outcome{Status: 503, Err: ratelimit.ErrOverloaded, Wait: time.Second},
			"200 14 1000 Service unavailable, retry in 1 s"},
		{respond.Outcome{Status: 402, Message: "Pay"}, "200 2 -1 Pay"},
	} {
		c.outcome.GRPC = true
		h := http.Header{}
		status, body := c.outcome.SetContent(h)
		check.Equal(t, fmt.Sprint("status ", c.outcome.Status), fmt.Sprint(status, " ",
			h.Get("Grpc-Status"), " ",
			h.Get("Grpc-Retry-Pushback-Ms"), " ", h.Get("Grpc-Message"), body), c.want)
	}
}
