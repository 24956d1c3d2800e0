package edge_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
)

func TestWhichClientsPreferProblems(t *testing.T) {
	const problem = "application/problem+json"
	for accept, want := range map[string]bool{
		problem: true,
		"Application/Problem+JSON; charset=utf-8":       true,
		problem + ", application/json;q=0.9":            true,
		problem + ";q=0.2, application/json;q=0.1, */*": true,
		"application/*, application/json;q=0.5":         true,
		"*/*;q=0.1,application/json;q=0.05":             true,
		"text/html, " + problem + ";q=0.001":            true,
		"":                                              false,
		"*/*":                                           false,
		"application/*":                                 false,
		"application/json":                              false,
		"application/json, " + problem:                  false, // of one weight
		problem + ";q=0.8, */*":                         false,
		problem + ";q=0":                                false,
		problem + ";q=0.000, application/json;q=0.0":    false,
		problem + ";q=2":                                false,
		problem + ";q=0.1234":                           false,
		problem + ";q=-1":                               false,
		problem + ";q=1.5":                              false,
		problem + "x":                                   false,
		strings.Repeat("a/b,", 400) + problem:           false, // too long
	} {
		if got := edge.PrefersProblem(http.Header{"Accept": {accept}}); got != want {
			t.Errorf("Accept %q: %t", accept, got)
		}
	}
	if !edge.PrefersProblem(http.Header{"Accept": {"text/html", problem}}) {
		t.Error("the second line of Accept is not read")
	}
}

func TestAnAnswerToSeveralKindsOfClientsSaysSo(t *testing.T) {
	for status, want := range map[int]string{http.StatusTooManyRequests: "Origin", http.StatusNotFound: "Origin,Accept"} {
		h := http.Header{"Vary": {"Origin"}}
		_ = (&edge.Request{HTTP: &http.Request{}, Outcome: edge.Outcome{Status: status}}).Content(h)
		if got := strings.Join(h["Vary"], ","); got != want {
			t.Errorf("%d: Vary is %s", status, got)
		}
	}
}
