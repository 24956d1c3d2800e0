package caddymodule

import (
	"fmt"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
)

// As for other modules of Caddy, settings in JSON may be numbers, booleans, arrays and durations. null means
// that a setting is left out.
func TestJSONAcceptsNumbersArraysAndNull(t *testing.T) {
	var h Handler
	config := `{"prefix": "a", "limit": [100, "1m"], "cost": 5, "lease": null, "durable": true,
		"hash_key": false, "exempt": ["10.0.0.0/8", "192.0.2.7"], "fields": ["x", "ietf"],
		"timeout": 250000000}`
	if err := caddy.StrictUnmarshalJSON([]byte(config), &h); err != nil {
		t.Fatal(err)
	}
	if err := h.compile(); err != nil {
		t.Fatal(err)
	}
	z := h.site.Zones[0]
	got := fmt.Sprintf("%d events, cost %d, durable %t, hash_key %t, %d exempt, IETF %t, timeout %v",
		z.Limit.Events, z.Cost, z.Limit.Durable, *z.HashKey, len(h.site.Exempt), h.site.Fields.IETF,
		h.site.Timeout)
	want := "100 events, cost 5, durable true, hash_key false, 2 exempt, IETF true, timeout 250ms"
	if got != want {
		t.Errorf("the handler has %s, want %s", got, want)
	}
	var text Handler
	if err := caddy.StrictUnmarshalJSON([]byte(strings.Replace(config, "250000000", `"1s"`, 1)),
		&text); err != nil {
		t.Fatal(err)
	}
	if err := text.compile(); err != nil || text.site.Timeout.String() != "1s" {
		t.Errorf("got error %v and site %+v, want a timeout of 1s", err, text.site)
	}
	for kept, want := range map[string]string{"7776000000000000": "2160h0m0s", `"90d"`: "90d"} {
		var r Retention
		err := caddy.StrictUnmarshalJSON([]byte(`{"audit": `+kept+`}`), &r)
		_, invalid := (&History{Retention: &r}).compile()
		if err != nil || invalid != nil || string(r.Audit) != want {
			t.Errorf("audit %s: got %+v and errors %v, %v; want %s", kept, r, err, invalid, want)
		}
	}
	for wrong, want := range map[string]string{
		`{"cost": {"n": 1}}`:         "cost of type string",
		`{"timeout": true}`:          "timeout of type int64",
		`{"exempt": [{"net": "x"}]}`: "exempt of type string",
	} {
		err := caddy.StrictUnmarshalJSON([]byte(wrong), new(Handler))
		if !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%s: got error %v, want %s", wrong, err, want)
		}
	}
}
