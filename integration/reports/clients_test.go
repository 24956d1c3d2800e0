package reports

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
)

// usedUp checks what the SDKs of OpenAI and Anthropic read once a budget is used up. Package clients has the
// SDKs.
func usedUp(v *visit) {
	ask := func(headers string) (string, http.Header) {
		r := v.dial().ask("POST / "+small, "X-Tokens: 1000\n"+headers)
		return r.Body, r.Header
	}
	const message = `{"type":"error","error":{"message":"Budget used up: ID opens on 20`
	v.Await("the budget to be used up", func() bool {
		body, _ := ask("")
		return strings.HasPrefix(body, v.fill(message))
	})
	for headers, kind := range map[string]string{"": "insufficient_quota",
		"Anthropic-Version: 2023-06-01": "rate_limit_error"} {
		body, h := ask(headers)
		if !strings.Contains(body, `","type":"`+kind+`","code":"insufficient_quota","param":null}`) {
			v.Errorf("with %q, the body is %s, want the type %s", headers, body, kind)
		}
		check.Equal(v, "X-Should-Retry", h.Get("X-Should-Retry"), "false")
		const most = 2_147_483 // seconds: a timer of a client overflows
		if seconds, err := strconv.Atoi(h.Get("Retry-After")); err != nil || seconds > most {
			v.Errorf("Retry-After is %q, want %d at most", h.Get("Retry-After"), most)
		}
	}
}

// budgetOf is a zone with a budget of ten tokens for a time.
func budgetOf(window string) []string {
	return []string{"key all\nalgorithm fixed_window\nlimit 10 " + window + "\nunit tokens"}
}

const aLot = "prefix ID-1\nkey all\nlimit 9000000 1h\nunit tokens" // with it, refusals have an object

var clients = []report{
	{"R50", "digitallyinduced/haskell-agent#1300; dhkts1/teamclaude-rs#313", []site{
		{zones: []string{"key all\nalgorithm token_bucket\nlimit 2 1m\ncost 5", aLot},
			upstream: mustNotBeAsked, asks: []ask{{line: "POST / {}", want: "429×1",
				body: `{"type":"error","error":{"message":"Too many requests: limit ID, which never …`}},
			seen: "X-Should-Retry: false\nRetry-After: -"},
		{zones: budgetOf("1h"), upstream: asksModel, check: usedUp},
		{zones: budgetOf("31d"), upstream: asksModel, check: usedUp},
	}},
}
