package settings

import (
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// dsn returns the setting of a DSN. The adapters read it.
func dsn(name, want string) Setting { return Setting{Name: name, Form: Words, Want: want} }

// number returns the setting of a whole number from 1 to most. Without a text, set is not called.
func number(name string, most int64, unset string, set func(to *Settings, n int64)) Setting {
	read := func(to *Settings, text string) error {
		if text == "" {
			return nil
		}
		n, err := parseNumber(text, most)
		if err == nil {
			set(to, n)
		}
		return err
	}
	want := "a whole number from 1 to " + strconv.FormatInt(most, 10)
	return Setting{Name: name, Want: want, Read: read, Unset: unset}
}

// parseNumber reads a whole number from 1 to most.
func parseNumber(text string, most int64) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 1 || n > most {
		return 0, errWant
	}
	return n, nil
}

// parseShare reads a percentage, which must have its sign, as a share from least to most.
func parseShare(text string, least, most float64) (float64, error) {
	percent, err := strconv.ParseFloat(strings.TrimSuffix(text, "%"), 64)
	share := percent / 100
	if err != nil || !strings.HasSuffix(text, "%") || math.IsNaN(share) || share < least || share > most {
		return 0, errWant
	}
	return share, nil
}

// oneOf returns the setting of one of some texts. The first is the default.
func oneOf(name string, set func(to *Settings, text string), texts ...string) Setting {
	read := func(to *Settings, text string) error {
		for _, one := range texts {
			if text == one {
				set(to, text)
				return nil
			}
		}
		return errWant
	}
	last := len(texts) - 1
	want := strings.Join(texts[:last], ", ") + " or " + texts[last]
	return Setting{Name: name, Form: Words, Want: want, Read: read, Unset: texts[0]}
}

// onOff returns the setting of a switch.
func onOff(name, unset string, field func(to *Settings) *bool) Setting {
	read := func(to *Settings, text string) (err error) {
		*field(to), err = ParseSwitch("", text)
		return err
	}
	return Setting{Name: name, Form: Switch, Read: read, Unset: unset}
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

// nodeName returns the setting of the name of a node or of a region.
func nodeName(name string, field func(to *Settings) *string) Setting {
	const most = 100
	control := func(c rune) bool { return c < ' ' || c == 0x7f }
	read := func(to *Settings, text string) error {
		*field(to) = text
		if len(text) > most || !utf8.ValidString(text) || strings.IndexFunc(text, control) >= 0 {
			return errWant
		}
		return nil
	}
	want := "a name of 1 to 100 bytes of UTF-8 without control characters"
	return Setting{Name: name, Want: want, Read: read}
}

// retention returns the setting of how long a part of the history is kept. what is Retention.What.
func retention(name, what string) Setting {
	read := func(to *Settings, text string) error {
		if text == "" {
			return nil
		}
		age, err := ParseAge(text)
		if err != nil || age < 24*time.Hour || age > MaxAge {
			return errWant
		}
		to.History.Retention = append(to.History.Retention, Retention{what, age})
		return nil
	}
	want := "a duration from 1d to 100y, such as 90d, 12w or 7y"
	return Setting{Name: name, Want: want, Duration: true, Read: read}
}

const (
	// year is the longest year, so that ParseAge does not cut seven years short.
	year     = 366 * 24 * time.Hour
	maxYears = 100

	// MaxAge is the longest time in years that ParseAge accepts.
	MaxAge = maxYears * year
)

// ParseAge reads a duration as ratelimit.ParseWindow takes it, or 1 to 100 years of 366 days, as in 7y.
func ParseAge(text string) (time.Duration, error) {
	number, isYears := strings.CutSuffix(text, "y")
	if !isYears {
		return ratelimit.ParseWindow(text)
	}
	years, err := parseNumber(number, maxYears)
	if err != nil {
		const want = "a duration such as 90d, or up to 100 years, as in 7y"
		return 0, &ratelimit.FieldError{Value: text, Want: want}
	}
	return time.Duration(years) * year, nil
}
