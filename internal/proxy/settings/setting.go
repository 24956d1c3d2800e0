package settings

import (
	"errors"
	"net/netip"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Setting describes one setting. The Caddyfile, the JSON of Caddy and the configuration of Traefik share it.
// The comments in tables.go describe the settings.
type Setting struct {
	Name       string // in a Caddyfile and in JSON; in Traefik in camel case
	Form       Form
	IsDuration bool      // Caddy's JSON may have the value as a number of nanoseconds
	Want       string    // the valid values, as an error names them after "must be"
	Settings   []Setting // the settings in a Block

	// Read validates the value of the setting, or Unset if the setting was left out, and stores it in dst.
	// Read may use the values of settings that stand earlier in the table. In a *ratelimit.FieldError that
	// Read returns, an empty Field means Name. Any other error means that the value does not match Want. If
	// Read is nil, another package parses the setting.
	Read  func(dst *Settings, text string) error
	Unset string
}

// Form is the syntax of a setting in a Caddyfile.
type Form uint8

// The values of Form.
const (
	OneWord Form = iota
	Words        // one or several words, joined with spaces
	Switch       // on, off or nothing, which means on
	Block        // a block with Setting.Settings
)

// Settings holds the values of all tables. Each table sets its own fields.
type Settings struct {
	Handler
	Limit         ConfiguredLimit
	APIKey        []string // the alternatives of an API key; one "" without it
	RejectUnknown bool     // refuse requests with an invalid API key, instead of ignoring the key
	Anonymous     bool     // with an API key, let requests without one and without a user pass
	Connection    Connection
	History       History
	Insecure      bool // serve the page to everybody
}

// Handler has the settings of HandlerTable that need nothing else to be used.
type Handler struct {
	Timeout time.Duration // bounds the time of the database; see ratelimit.Store.Take
	OnError OnError
	Fields  Fields
	Errors  Errors
	GRPC    bool           // refuse calls of gRPC, gRPC-Web and Connect as these protocols do
	Exempt  []netip.Prefix // the networks that are exempt from the limits of the configuration
	MaxBody int64          // bounds the body of a request to a language model, in bytes
}

// History configures the addresses in a proxy's records, and how long the database keeps the history.
type History struct {
	Address option.AddressMode

	// Retention overrides how long the database keeps parts of the history.
	Retention []option.Retention
}

// Values holds the settings of a table as text, by name. A setting that was left out is "" or missing.
type Values = map[string]string

// Read reads and validates the settings of a table. Errors are *ratelimit.FieldError with a name from the
// table and the configured value, which is "" if the setting was left out.
func Read(table []Setting, values Values, dst *Settings) error {
	for i := range table {
		if err := table[i].readFrom(values, dst); err != nil {
			return err
		}
	}
	return nil
}

func (s *Setting) readFrom(values Values, dst *Settings) error {
	value := values[s.Name]
	if value == "" {
		value = s.Unset
	}
	if s.Read == nil {
		return nil
	}
	err := s.Read(dst, value)
	if err == nil {
		return nil
	}
	fieldErr, ok := err.(*ratelimit.FieldError)
	if !ok {
		return option.Invalid(s.Name, values[s.Name], s.Want)
	}
	if fieldErr.Field == "" {
		fieldErr.Field = s.Name
	}
	return fieldErr
}

// errWant is the error of a value that does not match Setting.Want.
var errWant = errors.New("not what the setting must be")
