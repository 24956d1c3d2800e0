package settings

import (
	"errors"
	"net/netip"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Setting describes one setting. The Caddyfile, the JSON of Caddy and the configuration of Traefik share it.
// docs/settings.md and docs/page.md describe the settings.
type Setting struct {
	Name     string // in a Caddyfile and in JSON; in Traefik in camel case
	Form     Form
	Duration bool      // the JSON of Caddy may have nanoseconds
	Want     string    // the valid values, to follow "must be"
	Settings []Setting // the settings in a Block

	// Read reads the value, or Unset if the setting was left out, without regard to other settings. It
	// returns a *ratelimit.FieldError, in which an empty Field means Name, or any other error if the value
	// does not match Want. If Read is nil, the adapters read the setting.
	Read  func(to *Settings, text string) error
	Unset string

	// Validate checks the value after all settings have been read. Its errors are like those of Read. It may
	// be nil.
	Validate func(to *Settings, text string) error
}

// Form is the syntax of a setting in a Caddyfile.
type Form uint8

// The values of Form.
const (
	OneWord Form = iota
	Words        // one or several, joined with spaces
	Switch       // on, off or nothing, which means on
	Block        // of Setting.Settings
)

// Settings holds the values of all tables. Each table sets its own fields.
type Settings struct {
	Limit         ConfiguredLimit
	Timeout       time.Duration // bounds the decision on a request
	OnError       OnError
	Fields        Fields
	Exempt        []netip.Prefix // the addresses that are exempt from the limits
	RejectUnknown bool           // refuse requests with an invalid API key, instead of ignoring the key
	Store         Store
	History       History
	Insecure      bool // serve the page to everybody
}

// Values holds the settings of a table as text, by name. A setting that was left out is "" or missing.
type Values = map[string]string

// Read reads and validates the settings of a table. Errors are *ratelimit.FieldError, with the names of the
// table.
func Read(table []Setting, from Values, to *Settings) error {
	for i := range table {
		if err := table[i].apply(table[i].Read, to, from); err != nil {
			return err
		}
	}
	for i := range table {
		if err := table[i].apply(table[i].Validate, to, from); err != nil {
			return err
		}
	}
	return nil
}

// apply calls f, which is Read, Validate or nil. Its error shows the configured value, never Unset.
func (s *Setting) apply(f func(to *Settings, text string) error, to *Settings, from Values) error {
	if f == nil {
		return nil
	}
	value := from[s.Name]
	if value == "" {
		value = s.Unset
	}
	err := f(to, value)
	if err == nil {
		return nil
	}
	wrong, ok := err.(*ratelimit.FieldError)
	if !ok {
		return &ratelimit.FieldError{Field: s.Name, Value: from[s.Name], Want: s.Want}
	}
	if wrong.Field == "" {
		wrong.Field = s.Name
	}
	return wrong
}

// errWant is the error of a value that does not match Setting.Want.
var errWant = errors.New("not what the setting must be")
