package option_test

import (
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
)

// HasPassword finds a password that is not empty in a URL and in key=value pairs, in any case, with quotes
// and with spaces around the equals sign.
func TestPasswordInDSNIsFound(t *testing.T) {
	for dsn, want := range map[string]bool{
		"postgres://u:hunter2@h/db":                true,
		"postgres://u:hun/t@er2@h/db":              true,
		"postgres://h/db?user=u&password=hunter2":  true,
		"postgres://h/db?sslpassword=hunter2":      true,
		"host=h password=hunter2 user=u":           true,
		"host=h password = 'hunter2'":              true,
		"host=h PASSWORD=hunter2":                  true,
		"host=h password\t=\thunter2":              true,
		"host=h\npassword\r\n=\nhunter2":           true,
		"":                                         false,
		"memory":                                   false,
		"postgres://u@h:5432/db":                   false,
		"postgres://u:@h:5432/db":                  false,
		"postgres://h:5432/db?password=&user=u":    false,
		"host=h user=u passfile=/run/secrets/pass": false,
		"host=h password='' user=u":                false,
		"host=h password=":                         false,
	} {
		if got := option.HasPassword(dsn); got != want {
			t.Errorf("HasPassword(%q) = %v, want %v", dsn, got, want)
		}
	}
}
