package settings

import (
	"errors"
	"math"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Setting is one setting of a configuration. The Caddyfile, the JSON of Caddy, the configuration of Traefik
// and the documentation share it.
type Setting struct {
	Name     string // in a Caddyfile and in JSON; in Traefik in camel case
	Form     Form
	Duration bool      // the JSON of Caddy may have nanoseconds
	Args     string    // what the arguments in a Caddyfile must be; "" means Want
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

	// The documentation: the arguments in a Caddyfile, the meaning, and the default. Names are those of
	// Caddy, and links are relative to the folder docs.
	Syntax, Help, Default string
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
	Page          Page
}

// Page says who may see a page.
type Page struct {
	Insecure bool // everybody may reach it
}

// OnError says what happens to a request without a decision, because the database did not answer in time.
type OnError string

// The values of OnError.
const (
	Allow OnError = "allow" // the request passes: limits are not enforced meanwhile
	Deny  OnError = "deny"  // the request is refused with status 503
	Local OnError = "local" // this process decides, at its share of each limit
)

// Fields says which fields of a response describe the limits.
type Fields struct {
	X    bool // X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset and X-RateLimit-Overage
	IETF bool // RateLimit-Policy and RateLimit of draft-ietf-httpapi-ratelimit-headers-11
}

// DefaultTier is the tier of requests without another one.
const DefaultTier = "anonymous"

// WantArgs says what the arguments in a Caddyfile must be.
func (s *Setting) WantArgs() string {
	if s.Args != "" {
		return s.Args
	}
	return s.Want
}

// Values are the settings of a part of a configuration as text, by their names in the tables. A setting that
// was left out is "" or missing.
type Values = map[string]string

// Read reads the settings of a table, and then validates them as a whole, so that their order does not
// matter. Errors are *ratelimit.FieldError, with the names of the table.
func Read(table []Setting, from Values, to *Settings) error {
	for _, validates := range []bool{false, true} {
		for i := range table {
			s := &table[i]
			f := s.Read
			if validates {
				f = s.Validate
			}
			if f == nil {
				continue
			}
			if err := s.apply(f, to, from[s.Name]); err != nil {
				return err
			}
		}
	}
	return nil
}

// apply calls Read or Validate. An error shows what the configuration has, and never Unset.
func (s *Setting) apply(f func(to *Settings, text string) error, to *Settings, text string) error {
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

// number returns a Read of a whole number from 1 to most. A number that was left out stays as it is.
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

// readTimeout reads Settings.Timeout as ratelimit.ParseWindow takes it.
func readTimeout(to *Settings, text string) error {
	d, err := ratelimit.ParseWindow(text)
	if err != nil || d < time.Millisecond || d > time.Minute {
		return errWant
	}
	to.Timeout = d
	return nil
}

// onOff returns a Read of a setting that is on or off.
func onOff(field func(*Settings) *bool) func(*Settings, string) error {
	return func(to *Settings, text string) (err error) {
		*field(to), err = ParseSwitch("", text)
		return err
	}
}

// ParseSwitch reads a setting that is on or off; "" is off.
func ParseSwitch(name, text string) (bool, error) {
	switch text {
	case "on", "true", "1":
		return true, nil
	case "", "off", "false", "0":
		return false, nil
	}
	return false, &ratelimit.FieldError{Field: name, Value: text, Want: "on or off, or true or false"}
}

// readOnError reads Settings.OnError.
func readOnError(to *Settings, text string) error {
	to.OnError = OnError(text)
	if to.OnError != Allow && to.OnError != Deny && to.OnError != Local {
		return errWant
	}
	return nil
}

// readFields reads Settings.Fields.
func readFields(to *Settings, text string) error {
	to.Fields = Fields{X: text == "x" || text == "x ietf", IETF: text == "ietf" || text == "x ietf"}
	if !to.Fields.X && !to.Fields.IETF {
		return errWant
	}
	return nil
}

// readUnknownKey reads Settings.RejectUnknown.
func readUnknownKey(to *Settings, text string) error {
	to.RejectUnknown = text == "reject"
	if text != "reject" && text != "anonymous" {
		return errWant
	}
	return nil
}

const wantExempt = "networks or addresses with spaces between them, such as 10.0.0.0/8 192.0.2.7"

// readExempt reads Settings.Exempt.
func readExempt(to *Settings, text string) error {
	for _, word := range strings.Fields(text) {
		network, err := netip.ParsePrefix(word)
		if err != nil {
			address, failure := netip.ParseAddr(word)
			if failure != nil || address.Zone() != "" {
				return &ratelimit.FieldError{Value: word, Want: wantExempt}
			}
			address = address.Unmap()
			network = netip.PrefixFrom(address, address.BitLen())
		}
		to.Exempt = append(to.Exempt, network.Masked())
	}
	return nil
}
