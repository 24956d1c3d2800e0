package settings_test

import (
	"fmt"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
)

func TestParseSettle(t *testing.T) {
	for text, want := range map[string]string{
		"header x-tokens":            "X-Tokens false [] [] 0 0",
		"bytes":                      " true [] [] 0 0",
		"json usage.total_tokens":    " false [usage total_tokens] [] 0 0",
		"json tokens":                " false [tokens] [] 0 0",
		"status 401 403 = 1, else 0": " false [] [401 403] 1 0",
		"status  500 = 0,  else 999999999999999 ": " false [] [500] 0 999999999999999",
	} {
		s, err := settings.ParseSettle(text)
		if err != nil {
			t.Errorf("ParseSettle(%q) = error %v, want nil", text, err)
			continue
		}
		got := fmt.Sprintf("%s %v %v %v %d %d", s.Header, s.Bytes, s.Path, s.Statuses, s.Cost, s.Else)
		if got != want {
			t.Errorf("ParseSettle(%q) = %s, want %s", text, got, want)
		}
	}
	if s, err := settings.ParseSettle(" "); s != nil || err != nil {
		t.Errorf("ParseSettle(\" \") = %v, %v; want nil, nil", s, err)
	}
	for _, text := range []string{
		"header", "header a b", "header a:b", "bytes 1", "json", "json .a", "json a..b", "json a b", "status",
		"status 401", "status 401 = 1", "status 401 = 1 else 0", "status 99 = 1, else 0",
		"status 600 = 1, else 0", "status = 1, else 0", "status 401 = -1, else 0",
		"status 401 = 1, else 1000000000000000", "status 0401 = 1, else 0", "tokens", "json a\x00.b c",
	} {
		if s, err := settings.ParseSettle(text); err == nil {
			t.Errorf("ParseSettle(%q) = %+v, want an error", text, s)
		}
	}
}
