package edge_test

import (
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
)

func TestLimitsByAValue(t *testing.T) {
	got, err := edge.ReadLimit(edge.Values{"prefix": "a", "algorithm": "gcra", "burst": "3", "limits": "{header.X-Plan}  gold 1000/1m ,default 5 1m, free 10 1m"})
	if err != nil || got.By != "{header.X-Plan}" || got.Limit.Events != 5 || len(got.ByValue) != 2 {
		t.Fatalf("%+v, %v", got, err)
	}
	for value, events := range map[string]int64{"gold": 1000, "free": 10} {
		want := got.Limit
		want.Events = events
		if *got.ByValue[value] != want {
			t.Errorf("%s is %+v, want %+v", value, *got.ByValue[value], want)
		}
	}
	for field, settings := range map[string]edge.Values{
		"limits": {"prefix": "a", "algorithm": "sliding_log", "limits": "{x} gold 1001 1m, default 5 1m"},
		"lease":  {"prefix": "a", "lease": "5%", "limits": "{x} gold 10 1m, default 5 1m"},
		"limit":  {"prefix": "a", "limit": "5 1m", "limits": "{x} gold 10 1m, default 5 1m"},
	} {
		_, err := edge.ReadLimit(settings)
		checkField(t, err, field, settings[field])
	}
	for _, text := range []string{"{x}", "gold 5 1m, default 5 1m", "{x} gold 5 1m", "{x} default 5 1m,", "{x} gold 5 1h, default 5 1m", "{x} gold 5 1mo calendar, default 5 1m"} {
		_, err := edge.ReadLimit(edge.Values{"prefix": "a", "algorithm": "fixed_window", "limits": text})
		checkField(t, err, "limits", text)
	}
	for text, entry := range map[string]string{"{x} gold -5 1m, default 5 1m": "gold -5 1m", "{x} gold 5 1m, gold 6 1m, default 5 1m": "gold 6 1m"} {
		_, err := edge.ReadLimit(edge.Values{"prefix": "a", "limits": text})
		checkField(t, err, "limits", entry)
	}
}
