package settings_test

import (
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
)

func TestAKeyMayHaveAlternatives(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "{client_ip}": "", "{host}|{path}": "", "a||b": "", "{host} {path}": "",
		"{header.X} | {client_ip}":        "{header.X},{client_ip}",
		"{header.X}  |  {cookie.a} | all": "{header.X},{cookie.a},all",
		"{header.X}{header.Y} | {host}/a": "{header.X}{header.Y},{host}/a",
	} {
		got, err := settings.ReadLimit(settings.Values{"prefix": "a", "limit": "5 1m", "key": text})
		if err != nil || strings.Join(got.Alternatives, ",") != want {
			t.Errorf("key %q: got %+v and error %v, want alternatives %s", text, got, err, want)
		}
	}
	for _, text := range []string{"|", "| {client_ip}", "{client_ip} |", "{header.X} || {client_ip}",
		"{header.X} | | {client_ip}", "x{header.X} | {client_ip}", "all | {client_ip}",
		"{header.X}\t|\t{host}"} {
		_, err := settings.ReadLimit(settings.Values{"prefix": "a", "limit": "5 1m", "key": text})
		checkField(t, err, "key", text)
	}
}
