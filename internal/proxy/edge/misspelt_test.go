package edge

import "testing"

func TestAMisspeltNameIsRecognised(t *testing.T) {
	known := []string{"algorithm", "limit", "key", "on_error", "max_conns", "per_hour", "burst"}
	for name, want := range map[string]string{
		"limits": "limit", "limti": "limit", "algorithn": "algorithm", "on-error": "on_error", "onError": "on_error", "MAX_CONNS": "max_conns", "min_conns": "max_conns",
		"keys": "key", "per_day": "", "timeout": "", "x": "", "": "", "bursts": "burst", "key {client_ip}": "",
	} {
		if want != "" {
			want = " (did you mean " + want + "?)"
		}
		if got := DidYouMean(name, known); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
	if got, want := Among("limits", []string{"key", "limit"}), "one of key, limit (did you mean limit?)"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
