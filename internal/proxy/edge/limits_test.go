package edge_test

import (
	"reflect"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
)

func TestLimitsByAValue(t *testing.T) {
	got, err := edge.ReadLimit(reflect.ValueOf(edge.LimitSettings{Prefix: "a", Algorithm: "gcra", Burst: "3", Limits: "{header.X-Plan}  gold 1000/1m ,default 5 1m, free 10 1m"}))
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
	for field, settings := range map[string]edge.LimitSettings{
		"limits": {Prefix: "a", Algorithm: "sliding_log", Limits: "{x} gold 1001 1m, default 5 1m"},
		"lease":  {Prefix: "a", Lease: "5%", Limits: "{x} gold 10 1m, default 5 1m"},
		"limit":  {Prefix: "a", Limit: "5 1m", Limits: "{x} gold 10 1m, default 5 1m"},
	} {
		_, err := edge.ReadLimit(reflect.ValueOf(settings))
		value := settings.Limits
		switch field {
		case "lease":
			value = settings.Lease
		case "limit":
			value = settings.Limit
		}
		checkField(t, err, field, value)
	}
	for _, text := range []string{"{x}", "gold 5 1m, default 5 1m", "{x} gold 5 1m", "{x} default 5 1m,", "{x} gold 5 1h, default 5 1m", "{x} gold 5 1mo calendar, default 5 1m"} {
		_, err := edge.ReadLimit(reflect.ValueOf(edge.LimitSettings{Prefix: "a", Algorithm: "fixed_window", Limits: text}))
		checkField(t, err, "limits", text)
	}
	for text, entry := range map[string]string{"{x} gold -5 1m, default 5 1m": "gold -5 1m", "{x} gold 5 1m, gold 6 1m, default 5 1m": "gold 6 1m"} {
		_, err := edge.ReadLimit(reflect.ValueOf(edge.LimitSettings{Prefix: "a", Limits: text}))
		checkField(t, err, "limits", entry)
	}
}
