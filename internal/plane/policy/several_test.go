package policy_test

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
)

// countedAs returns the keys that a request is charged to, or the status of a refusal, for a rule that counts
// by something: WITHOUT_HEADER/MODE COUNT_BY ~ HEADERS. The kind of the request says what else it has.
func countedAs(t *testing.T, kind, text string) string {
	t.Helper()
	parts := strings.Split(text, " ~ ")
	words := strings.Fields(parts[0])
	without, mode, _ := strings.Cut(words[0], "/")
	r := policy.Rule{Name: "r", CountBy: words[1:], Mode: option.Mode(mode), Limits: perHour(1),
		WithoutHeader: option.Without(strings.TrimPrefix(without, "default"))}
	f := &policy.Facts{Path: "/", DefaultTier: "t", Host: "h", Address: netip.MustParseAddr("192.0.2.7"),
		HTTP: &http.Request{Header: http.Header{}}, KeyHeaders: []string{"X-Api-Key", "Authorization"},
		Preflight: kind == "preflight"}
	for _, line := range parts[1:] {
		name, value, _ := strings.Cut(line, ":")
		f.HTTP.Header.Add(name, strings.TrimPrefix(value, " "))
	}
	var id *policy.Identity
	switch kind {
	case "accepted":
		f.Key, id = "K", &policy.Identity{Digest: policy.Digest("K"), Known: true, KeyID: 7}
	case "routed":
		f.SetRoutes([]string{"r1", "r2"})
	}
	v := mustDecide(t, []policy.Rule{r}, f, id)
	if v.Reason != "" {
		return fmt.Sprint(v.Status, " ", v.Reason)
	}
	var keys []string
	for _, h := range v.Hits {
		key := h.Key
		if h.Secret {
			key += " (secret)"
		}
		keys = append(keys, key)
	}
	return strings.Join(keys, ", ")
}
