package edge

import (
	"errors"
	"math"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/respond"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Setting is one setting of a configuration: what the Caddyfile, the JSON of Caddy, the
// configuration of Traefik and the documentation have in common.
type Setting struct {
	Name     string // in a Caddyfile and in JSON; Traefik has it in camel case
	Form     Form
	Args     string    // what the arguments in a Caddyfile must be; "" is Want
	Want     string    // what the value must be
	Settings []Setting // of a block

	// Read reads the value, or Unset if the setting was left out. It knows nothing of other settings. An error that is no
	// *ratelimit.FieldError means that the value is not what Want says. The Field of an error is Name if
	// it is "". Nil if the adapters read the setting.
	Read  func(to *Settings, text string) error
	Unset string

	// Validate checks the value beside those of all other settings, which have been read. Its errors are as those of
	// Read. It may be nil.
	Validate func(to *Settings, text string) error

	// The documentation: how a Caddyfile has the arguments, what the setting means, and what holds
	// without it. Names are those of Caddy, and links are from the folder docs.
	Syntax, Help, Default string
}

// Form is how a Caddyfile has a setting.
type Form uint8

// The values of Form.
const (
	OneWord Form = iota
	Words        // one or several, which are joined with spaces
	Switch       // on, off or nothing, which is on
	Block        // of the Setting's Settings
)

// Settings are what the tables read. Each table sets its part.
type Settings struct {
	Limit         ConfiguredLimit
	Timeout       time.Duration // for the decision on a request
	OnError       OnError
	Fields        respond.Fields
	Exempt        []netip.Prefix // requests from there are exempt from the limits
	RejectUnknown bool           // refuse a request with an API key that is not valid; else it is one without a key
	Store         StoreSettings
	History       HistorySettings
	Page          PageSettings
}

// PageSettings say who may see a page.
type PageSettings struct {
	Insecure bool // everybody may reach it
}

// WantArgs says what the arguments in a Caddyfile must be.
func (s *Setting) WantArgs() string {
	if s.Args != "" {
		return s.Args
	}
	return s.Want
}

// Values are the settings of a part of a configuration as it has them, in text, by their names in the tables. A setting that
// was left out is "" or not there.
type Values = map[string]string

// Read reads the settings of a table, and then validates them as a whole, so that their order does not matter. It opens and
// registers nothing. Errors are *ratelimit.FieldError, with the names of the table.
func Read(table []Setting, from Values, to *Settings) error {
	for i := range table {
		if table[i].Read != nil {
			if err := table[i].apply(table[i].Read, to, from[table[i].Name]); err != nil {
				return err
			}
		}
	}
	for i := range table {
		if table[i].Validate != nil {
			if err := table[i].apply(table[i].Validate, to, from[table[i].Name]); err != nil {
				return err
			}
		}
	}
	return nil
}

// apply calls Read or Validate.
func (s *Setting) apply(f func(to *Settings, text string) error, to *Settings, text string) error {
	// An error shows what the configuration has, and never Unset.
	value := text
	if value == "" {
		value = s.Unset
	}
	err := f(to, value)
	if err == nil {
		return nil
	}
	wrong, ok := err.(*ratelimit.FieldError)
	if !ok {
		return &ratelimit.FieldError{Field: s.Name, Value: text, Want: s.Want}
	}
	if wrong.Field == "" {
		wrong.Field = s.Name
	}
	return wrong
}

// errWant is the error of a value that is not what Setting.Want says.
var errWant = errors.New("not what the setting must be")

// number reads a whole number from 1 to most. A number that was left out stays as it is.
func number(most int, field func(*Settings) *int) func(*Settings, string) error {
	return func(to *Settings, text string) error {
		if text == "" {
			return nil
		}
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > most {
			return errWant
		}
		*field(to) = n
		return nil
	}
}

// readShare reads a percentage, which must have its sign, as a share from least to most.
func readShare(text string, least, most float64) (float64, error) {
	percent, err := strconv.ParseFloat(strings.TrimSuffix(text, "%"), 64)
	share := percent / 100
	if err != nil || !strings.HasSuffix(text, "%") || math.IsNaN(share) || share < least || share > most {
		return 0, errWant
	}
	return share, nil
}

// duration reads a duration as ratelimit.ParseWindow takes it.
func duration(least, most time.Duration, field func(*Settings) *time.Duration) func(*Settings, string) error {
	return func(to *Settings, text string) error {
		d, err := ratelimit.ParseWindow(text)
		if err != nil || d < least || d > most {
			return errWant
		}
		*field(to) = d
		return nil
	}
}

// onOff reads a setting that is on or off.
func onOff(field func(*Settings) *bool) func(*Settings, string) error {
	return func(to *Settings, text string) (err error) {
		*field(to), err = ParseSwitch("", text, false)
		return err
	}
}

// ParseSwitch reads a setting that is on or off; "" is unset.
func ParseSwitch(name, text string, unset bool) (bool, error) {
	switch text {
	case "":
		return unset, nil
	case "on", "true", "1":
		return true, nil
	case "off", "false", "0":
		return false, nil
	}
	return false, &ratelimit.FieldError{Field: name, Value: text, Want: "on or off, or true or false"}
}
