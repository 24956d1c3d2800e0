package settings

import (
	"errors"
	"net/netip"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Setting is one setting of a configuration. The Caddyfile, the JSON of Caddy and the configuration of
// Traefik share it. docs/settings.md and docs/page.md describe it.
type Setting struct {
	Name     string // in a Caddyfile and in JSON; in Traefik in camel case
	Form     Form
	Duration bool      // the JSON of Caddy may have nanoseconds
	Want     string    // what the value must be
	Settings []Setting // of a block

	// Read reads the value, or Unset if the setting was left out, without regard to other settings. An error
	// other than a *ratelimit.FieldError means that the value is not what Want says. If the Field of an error
	// is "", it means Name. If Read is nil, the adapters read the setting.
	Read  func(to *Settings, text string) error
	Unset string

	// Validate checks the value beside all other settings, after their Read. Its errors are as those of Read.
	// It may be nil.
	Validate func(to *Settings, text string) error
}

// Form is the form of a setting in a Caddyfile.
type Form uint8

// The values of Form.
const (
	OneWord Form = iota
	Words        // one or several, joined with spaces
	Switch       // on, off or nothing, which means on
	Block        // of Setting.Settings
)

// Settings are the values of the tables. Each table sets its part.
type Settings struct {
	Limit         ConfiguredLimit
	Timeout       time.Duration // for the decision on a request
	OnError       OnError
	Fields        Fields
	Exempt        []netip.Prefix // requests from there are exempt from the limits
	RejectUnknown bool           // refuse a request with an invalid API key; else ignore the key
	Store         Store
	History       History
	Insecure      bool // everybody may reach a page
}

// Values are the settings of a part of a configuration as text, by their names in the tables. A setting that
// was left out is "" or missing.
type Values = map[string]string

// Read reads the settings of a table, and then validates them as a whole, so that their order does not
// matter. Errors are *ratelimit.FieldError, with the names of the table.
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

// apply calls Read or Validate, if there is one. An error shows what the configuration has, and never Unset.
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

// errWant is the error of a value that is not what Setting.Want says.
var errWant = errors.New("not what the setting must be")
