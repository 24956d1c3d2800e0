package caddymodule

import (
	"regexp"

	"github.com/caddyserver/caddy/v2"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/settings"
)

// ExpandDSN returns a configured DSN with its placeholders replaced, and the text that errors show instead of
// the DSN.
func ExpandDSN(configured string) (dsn, redacted string, err error) {
	if configured == "" {
		return "", "$" + settings.EnvDSN, nil
	}
	redacted = showDSN(configured)
	// Unknown placeholders stay unchanged, since a brace may be part of a password.
	dsn, err = caddy.NewReplacer().ReplaceOrErr(configured, true, false)
	if err != nil {
		return "", "", option.Invalid("dsn", redacted, settings.WantDSN+": "+err.Error())
	}
	return dsn, redacted, nil
}

// dsnOf returns the DSN for a configured text, which may be empty.
func dsnOf(configured Text) (host.DSN, error) {
	dsn, shown, err := ExpandDSN(string(configured))
	// A password in a placeholder is not in the configuration.
	literal := inBraces.ReplaceAllLiteralString(string(configured), "")
	d := host.DSN{DSN: dsn, Shown: shown, HasPassword: option.HasPassword(literal)}
	if dsn != string(configured) {
		d.From = string(configured)
		d.Renew = func() (string, error) {
			current, _, err := ExpandDSN(string(configured))
			return current, err
		}
	}
	return d, err
}

var (
	inBraces = regexp.MustCompile(`\{[^}]*\}`)
	// publicDSN matches a single word or placeholder, and publicScheme the scheme of a URL.
	publicDSN    = regexp.MustCompile(`^(?:\{[^{} @=]*\}|[^{}@= '"/?]*)$`)
	publicScheme = regexp.MustCompile(`^[^{}@= '"/?]*://`)
)

// showDSN returns the part of a DSN that cannot contain a password: a single word or placeholder as a whole,
// otherwise the scheme of a URL.
func showDSN(dsn string) string {
	if publicDSN.MatchString(dsn) {
		return dsn
	}
	return publicScheme.FindString(dsn) + "…"
}
