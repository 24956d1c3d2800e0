package edge_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

func TestHeadersOfAnUpstream(t *testing.T) {
	const ours, theirs = "[10] [5] [1700000000]", "[100] [3] [12]"
	for _, test := range []struct {
		policy                  edge.HeaderPolicy
		limit, remaining, reset string
		want                    string
	}{
		{edge.OurHeaders, "", "", "", ours},
		{edge.OurHeaders, "100", "3", "12", ours},
		{edge.TighterHeaders, "", "", "", ours},
		{edge.TighterHeaders, "100", "3", "12", theirs},
		{edge.TighterHeaders, "100", "7", "12", ours},
		{edge.TighterHeaders, "100", "many", "12", ours},
		{edge.TighterHeaders, "", "3", "", "[] [3] []"},
	} {
		d := ratelimit.Decision{Allowed: true, Limit: 10, Remaining: 5, Reset: time.Unix(1700000000, 0)}
		h := http.Header{}
		own := edge.SetHeaders(h, &edge.Outcome{Decision: &d})
		for name, value := range map[string]string{"X-RateLimit-Limit": test.limit, "X-RateLimit-Remaining": test.remaining, "X-RateLimit-Reset": test.reset} {
			if value != "" {
				h.Add(name, value)
			}
		}
		edge.RestoreHeaders(h, own, test.policy)
		if got := fmt.Sprint(h["X-Ratelimit-Limit"], h["X-Ratelimit-Remaining"], h["X-Ratelimit-Reset"]); got != test.want {
			t.Errorf("%+v: %s", test, got)
		}
	}
	if _, err := read(t, edge.HandlerTable, "headers", "theirs"); err == nil {
		t.Error("a wrong policy is accepted")
	}
}
